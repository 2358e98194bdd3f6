"""FrozenLake: reach the goal over slippery ice without falling into a hole."""

import random
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from envs.base import ObservationFormat, Split, TextEnvironment
from envs.errors import UnsatisfiableSettingsError
from envs.frozen_lake_maps import Lake, draw_lake, neighbours, optimal_policy, read_lake
from envs.grids import paint
from envs.seeding import generator
from envs.splits import members, split_of

ACTION_NAMES = ("Left", "Down", "Right", "Up")
GLYPHS = "P_OGX√"
MAX_DRAWS = 4_000

_DOWN, _RIGHT = 1, 2
_PALETTE = {
    "P": (60, 100, 220),
    "_": (210, 235, 250),
    "O": (40, 60, 90),
    "G": (90, 180, 90),
    "X": (200, 60, 60),
    "√": (240, 200, 60),
}


class SlipNoise(StrEnum):
    """Whose slips are equal: INDEPENDENT draws per member, or COMMON draws inside a group."""

    INDEPENDENT = "independent"
    COMMON = "common"


class FrozenLakeSettings(BaseModel):
    """Settings of `FrozenLake`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(default=4, ge=2, le=16, description="rows and columns of a generated lake")
    ice_probability: float = Field(
        default=0.9, gt=0, le=1, description="probability that a cell of a generated lake is ice"
    )
    intended_probability: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="probability of the intended direction; 1: no slip, 1/3: as the first paper",
    )
    slip_noise: SlipNoise = Field(
        default=SlipNoise.INDEPENDENT,
        description="slips per member of a group (independent) or shared in the group (common)",
    )
    observation: ObservationFormat = Field(
        default=ObservationFormat.GRID, description="grid | coord | grid_coord"
    )
    maps: tuple[tuple[str, ...], ...] = Field(
        default=(), description="Gymnasium's `desc` lists (S F H G) to use; none: generate lakes"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for index, rows in enumerate(self.maps):
            read_lake(rows, index=index)
        return self


@lru_cache(maxsize=4096)
def draw_instance(settings: FrozenLakeSettings, *, split: Split, seed: int) -> Lake:
    """Returns the lake that a seed names; its canonical text decides its split.

    Raises:
        UnsatisfiableSettingsError: No lake of this split in `MAX_DRAWS` draws or among the maps.
    """
    draw = generator("frozen lake", split, seed)
    if settings.maps:
        lakes = [read_lake(rows, index=index) for index, rows in enumerate(settings.maps)]
        candidates = members([lake.key() for lake in lakes], split=split)
        if not candidates:
            raise UnsatisfiableSettingsError(
                f"none of the {len(lakes)} maps is in the split `{split}`\n"
                "hint: give at least two maps that differ by more than a rotation or reflection"
            )
        return lakes[draw.choice(candidates)]
    for _ in range(MAX_DRAWS):
        lake = draw_lake(draw, size=settings.size, ice_probability=settings.ice_probability)
        if lake is not None and split_of(lake.key()) is split:
            return lake
    raise UnsatisfiableSettingsError(
        f"no lake of size {settings.size} with ice_probability={settings.ice_probability} in the "
        f"split `{split}` in {MAX_DRAWS} draws\nhint: raise `ice_probability` or `size`"
    )


class FrozenLake(TextEnvironment):
    """A lake of ice and holes. Reward 1 on the goal, else 0; ends on the goal or in a hole.

    The player moves in the intended direction with probability s, in each perpendicular one with
    (1 - s) / 2, never backwards; the edge stops it. Success = on the goal.
    """

    settings_class: ClassVar[type[BaseModel]] = FrozenLakeSettings
    settings: FrozenLakeSettings

    def __init__(
        self,
        settings: FrozenLakeSettings | None = None,
        *,
        split: Split = Split.TRAIN,
        render_mode: str | None = None,
    ):
        super().__init__(settings, split=split, render_mode=render_mode, extra_characters=GLYPHS)
        self._name_actions(ACTION_NAMES)
        self._intended = self.settings.intended_probability
        self._aside = self._intended + (1 - self._intended) / 2

    def _begin(self, seed: int, noise: random.Random) -> None:
        self._lake = draw_instance(self.settings, split=self.split, seed=seed)
        self._table = neighbours(self._lake.height, self._lake.width)
        self._player = self._lake.start
        self._num_slips = 0
        self._texts: dict[int, str] = {}
        common = self.settings.slip_noise is SlipNoise.COMMON
        self._noise = generator("frozen lake slips", seed) if common else noise

    def _apply(self, index: int) -> tuple[float, bool, bool, bool]:
        uniform = self._noise.random()
        if uniform >= self._intended:
            index = (index + (1 if uniform < self._aside else 3)) % 4
            self._num_slips += 1
        before = self._player
        cell = self._player = self._table[before][index]
        self._success = cell == self._lake.goal
        terminated = self._success or self._lake.cells[cell] == "H"
        return float(self._success), terminated, False, cell != before

    def _intend(self, index: int) -> None:
        self._player = self._table[self._player][index]
        self._success = self._player == self._lake.goal
        self._over = self._over or self._success or self._lake.cells[self._player] == "H"

    def _numbers(self) -> dict[str, float]:
        return {
            "fell": float(self._lake.cells[self._player] == "H"),
            "num_slips": float(self._num_slips),
        }

    def _rows(self) -> list[str]:
        lake, player = self._lake, self._player
        signs = list(lake.cells.replace("F", "_").replace("H", "O"))
        signs[lake.goal] = "G"
        signs[player] = "√" if player == lake.goal else "X" if lake.cells[player] == "H" else "P"
        return [
            "".join(signs[start : start + lake.width]) for start in range(0, len(signs), lake.width)
        ]

    def _place(self, cell: int) -> str:
        row, column = divmod(cell, self._lake.width)
        return f"{row},{column}"

    def observation(self) -> str:
        """Returns the map, the coordinates, or both, as the settings say."""
        text = self._texts.get(self._player)
        if text is None:
            text = self._texts[self._player] = self._observe()
        return text

    def _observe(self) -> str:
        parts = []
        if self.settings.observation is not ObservationFormat.COORD:
            parts.append("\n".join(self._rows()))
        if self.settings.observation is not ObservationFormat.GRID:
            lake = self._lake
            holes = [divmod(c, lake.width) for c, sign in enumerate(lake.cells) if sign == "H"]
            parts.append(
                f"Board size: {lake.height} rows, {lake.width} columns\n"
                f"Player (row, column): {divmod(self._player, lake.width)}\n"
                f"Goal: {divmod(lake.goal, lake.width)}\n"
                f"Holes: {holes}"
            )
        return "\n".join(parts)

    def _neighbours(self) -> str:
        words = []
        for letter, cell in zip("LDRU", self._table[self._player], strict=True):
            if cell == self._player:
                sign = "w"
            elif cell == self._lake.goal:
                sign = "g"
            else:
                sign = "h" if self._lake.cells[cell] == "H" else "i"
            words.append(letter + sign)
        return " ".join(words)

    def compact(self) -> str:
        """Returns player, neighbours, goal and holes: `P 1,1 Li Dh Rg Uw`, `G 1,2`, `H 2,1 3,3`.

        L D R U name the neighbour cell to the left, below, to the right, above: i ice, h hole,
        g goal, w the edge.
        """
        lake = self._lake
        holes = [self._place(cell) for cell, sign in enumerate(lake.cells) if sign == "H"]
        return (
            f"P {self._place(self._player)} {self._neighbours()}\n"
            f"G {self._place(lake.goal)}\n"
            f"{' '.join(('H', *holes))}"
        )

    def legend(self) -> str:
        """Returns the meaning of the signs in use."""
        if self.settings.observation is ObservationFormat.COORD:
            return "Coordinates are zero-based (row, column) from the top left."
        return "P player, _ ice, O hole, G goal, X player in a hole, √ player on the goal"

    def picture(self) -> NDArray[np.uint8]:
        """Returns the map in colours, 16 pixels a cell."""
        return paint(self._rows(), palette=_PALETTE)

    def level(self) -> str:
        """Returns the lake in the signs `S F H G`, the smallest of its 8 symmetric images."""
        return self._lake.key()

    def strata(self) -> str:
        """Returns the kind of lake: clear, risky or detour."""
        return self._lake.kind().value

    def optimal_action(self) -> str:
        """Returns the action that value iteration finds best, the slips taken into account."""
        policy = optimal_policy(self._lake, intended_probability=self._intended)
        return ACTION_NAMES[policy[self._player]]

    def naive_action(self) -> str:
        """Returns `Right` while the goal lies further right, else `Down`; sees no holes.

        It never goes left or up, so it misses every goal that lies there.
        """
        column, goal_column = self._player % self._lake.width, self._lake.goal % self._lake.width
        return ACTION_NAMES[_RIGHT if goal_column > column else _DOWN]

    def trace(self, actions: Sequence[str]) -> str:
        """Returns player, goal and the cell where the actions are meant to end.

        For instance `P 1,0 G 2,1 end 2,1`.
        """
        ahead = self
        for action in actions:
            ahead = ahead.after(action)
        player, goal, end = map(self._place, (self._player, self._lake.goal, ahead._player))
        return f"P {player} G {goal} end {end}"
