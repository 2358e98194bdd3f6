"""The contract shared by all environments: a `gymnasium.Env` over text, one action a step."""

import copy
import random
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import BaseModel

from envs.errors import EpisodeOverError, NoSolverError, ResetOptionsError
from envs.seeding import generator

_OBSERVATION_CHARACTERS = frozenset(string.printable)
_ACTION_CHARACTERS = frozenset(string.ascii_letters)
_MAX_OBSERVATION_CHARACTERS = 100_000
_MAX_ACTION_CHARACTERS = 32


class Split(StrEnum):
    """The two disjoint sets of instances of every environment."""

    TRAIN = "train"
    EVALUATION = "evaluation"


class ObservationFormat(StrEnum):
    """How a grid environment writes its state."""

    GRID = "grid"
    COORD = "coord"
    GRID_COORD = "grid_coord"


class TextEnvironment(gymnasium.Env[str, str], ABC):  # type: ignore[misc] # gymnasium is untyped here
    """One environment whose observations and actions are text.

    `reset(seed=s)` fully determines the instance; `options={"noise_seed": n}` determines the chance
    inside the episode (payout, slip), which members of a group draw apart. A step with a name that
    is no action changes nothing and is counted in `info["action_valid"]`. Every value in `info` is
    a number. `info["success"]` follows the environment's own rule, never the end flags.

    Attributes:
        settings_class: The environment's own settings class.
        settings: The settings in use.
        action_names: The names a step accepts (letter case ignored); may change at `reset`.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}
    settings_class: ClassVar[type[BaseModel]]
    settings: BaseModel
    action_names: tuple[str, ...]

    def __init__(
        self,
        settings: BaseModel | None = None,
        *,
        split: Split = Split.TRAIN,
        render_mode: str | None = None,
        extra_characters: str = "",
    ):
        self.settings = self.settings_class() if settings is None else settings
        self.split = Split(split)
        self.render_mode = render_mode
        self.observation_space = spaces.Text(
            _MAX_OBSERVATION_CHARACTERS,
            charset=_OBSERVATION_CHARACTERS | frozenset(extra_characters),
        )
        self.action_space = spaces.Text(_MAX_ACTION_CHARACTERS, charset=_ACTION_CHARACTERS)
        self._action_index: Mapping[str, int] = {}
        self._over = True
        self._success = False

    def _name_actions(self, names: Sequence[str]) -> None:
        self.action_names = tuple(names)
        self._action_index = {name.casefold(): index for index, name in enumerate(names)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, float]]:
        """Starts the episode that `seed` names.

        Args:
            seed: Names the instance; drawn from the environment's own generator when absent.
            options: `{"noise_seed": int}` names the chance inside the episode; by default it is
                derived from `seed`.

        Returns:
            The first observation and the first numbers.

        Raises:
            ResetOptionsError: An option other than `noise_seed`.
            UnsatisfiableSettingsError: No instance fits the settings.
        """
        super().reset(seed=seed)
        options = options or {}
        if unknown := sorted(options.keys() - {"noise_seed"}):
            raise ResetOptionsError(
                f"unknown reset option {', '.join(f'`{name}`' for name in unknown)}\n"
                "hint: the only option is `noise_seed` (an integer)"
            )
        seed = int(self.np_random.integers(2**31)) if seed is None else int(seed)
        noise_seed = options.get("noise_seed")
        noise = generator("noise", "default" if noise_seed is None else int(noise_seed), seed)
        self._over = False
        self._success = False
        self._begin(seed, noise)
        return self.observation(), self._info(valid=True, effective=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, float]]:
        """Executes one action by name.

        Args:
            action: One of `action_names`; surrounding blanks and letter case are ignored.

        Returns:
            Observation, reward, terminated, truncated and numbers.

        Raises:
            EpisodeOverError: The episode has ended or was never started.
        """
        if self._over:
            raise EpisodeOverError(
                f"step(`{action}`) after the end of the episode\nhint: call `reset` first"
            )
        index = self._action_index.get(action.strip().casefold())
        if index is None:
            return self.observation(), 0.0, False, False, self._info(valid=False, effective=False)
        reward, terminated, truncated, effective = self._apply(index)
        self._over = terminated or truncated
        info = self._info(valid=True, effective=effective)
        return self.observation(), reward, terminated, truncated, info

    def _info(self, *, valid: bool, effective: bool) -> dict[str, float]:
        return {
            "action_valid": float(valid),
            "action_effective": float(effective),
            "success": float(self._success),
        } | self._numbers()

    def after(self, action: str) -> Self:
        """Returns a copy in the state that the action is meant to lead to (no slip, no chance).

        The environment itself and its noise stay as they are; the copy is for planning only.
        """
        ahead = copy.copy(self)
        ahead._intend(self._action_index[action.casefold()])
        return ahead

    def render(self) -> str | NDArray[np.uint8]:  # type: ignore[override, unused-ignore] # two modes
        """Returns the observation text, or the picture when `render_mode` is `rgb_array`."""
        return self.picture() if self.render_mode == "rgb_array" else self.observation()

    @property
    def over(self) -> bool:
        """Whether the episode has ended (or was never started)."""
        return self._over

    @abstractmethod
    def _begin(self, seed: int, noise: random.Random) -> None:
        """Sets up the instance of `seed`; `noise` is the only source of chance after that."""

    @abstractmethod
    def _apply(self, index: int) -> tuple[float, bool, bool, bool]:
        """Executes action `index`; returns reward, terminated, truncated, effective."""

    def _intend(self, index: int) -> None:
        """Moves this copy to the state that action `index` is meant to lead to.

        Only environments with chance differ from simply executing the action.
        """
        _, terminated, truncated, _ = self._apply(index)
        self._over = terminated or truncated

    def _numbers(self) -> dict[str, float]:
        """Returns the environment's own numbers for `info`."""
        return {}

    @abstractmethod
    def observation(self) -> str:
        """Returns the state as text."""

    def compact(self) -> str:
        """Returns the state in a few words of fixed order, for policies of tiny size."""
        return self.observation()

    def legend(self) -> str:
        """Returns what the signs in the observation mean; empty when there are none."""
        return ""

    def picture(self) -> NDArray[np.uint8]:
        """Returns the state as an RGB picture of shape (height, width, 3)."""
        raise NotImplementedError(f"`{type(self).__name__}` draws no pictures")

    @abstractmethod
    def level(self) -> str:
        """Returns the instance as text, equal for instances that are equal up to symmetry."""

    def strata(self) -> str:
        """Returns the kind of instance for stratified reports; empty when there is one kind."""
        return ""

    def optimal_action(self) -> str:
        """Returns a best action in the current state, from an exact solver.

        Raises:
            NoSolverError: The environment has none; a warm start needs one.
        """
        raise NoSolverError(
            f"`{type(self).__name__}` has no solver to demonstrate it\n"
            "hint: write its `optimal_action`, or start from a policy: `policy.path=FOLDER`"
        )

    def naive_action(self) -> str:
        """Returns the action of a plausible, biased player in the current state."""
        return self.optimal_action()

    def trace(self, actions: Sequence[str]) -> str:
        """Returns a short thought that leads to `actions` (not yet executed) from here."""
        return " then ".join(actions)
