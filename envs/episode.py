"""An episode at the level of text: replies in, turn texts out, with budgets and penalties.

Knows nothing of tokens. Running out of turns or actions truncates; only the environment terminates.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from envs.base import Split
from envs.errors import EpisodeOverError
from envs.prompts import Budget, LastTurn, render_turn
from envs.replies import parse_reply
from envs.tags import Tag, make_environment


@dataclass(frozen=True)
class TurnResult:
    """What a reply brought.

    Attributes:
        actions: Names of the executed actions, in order.
        valid: Whether the reply cost no penalty.
        reward: Sum of the environment's rewards in this turn, penalty not included.
        penalty: 0 for a valid reply, else minus the penalty.
        terminated: The environment ended the episode.
        truncated: A budget or bound ended it first.
        next_prompt: The next user message; None at the end.
        metrics: Numbers of this turn.
    """

    actions: tuple[str, ...]
    valid: bool
    reward: float
    penalty: float
    terminated: bool
    truncated: bool
    next_prompt: str | None
    metrics: Mapping[str, float]

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


class Episode:
    """One episode of a tag.

    Args:
        tag: The recipe.
        split: Which instances.
        thinking: Whether a reply must have a think part.
        invalid_penalty: Cost of an invalid turn, from 0 up; -penalty is added to the turn's score.

    Example:
        >>> from envs.tags import get_tag
        >>> episode = Episode(get_tag("ShortSokoban"), split=Split.TRAIN, thinking=False)
        >>> prompt = episode.start(seed=0, noise_seed=0)
        >>> episode.act("<answer>Jump</answer>").penalty
        -0.1
    """

    def __init__(
        self, tag: Tag, *, split: Split, thinking: bool, invalid_penalty: float = 0.1
    ) -> None:
        if not invalid_penalty >= 0:
            raise ValueError(
                f"invalid_penalty={invalid_penalty}\nhint: allowed is a number from 0 up"
            )
        self.tag = tag
        self.environment = make_environment(tag, split=split)
        self._thinking = thinking
        self._invalid_penalty = invalid_penalty
        self._clear()
        self._over = True

    def _clear(self) -> None:
        self._log: list[str] = []
        self._totals: Counter[str] = Counter()
        self._turns = self._num_actions = 0
        self._success = self._terminated = self._truncated = self._over = False

    def start(self, *, seed: int, noise_seed: int) -> str:
        """Starts the episode and returns the first user message.

        Args:
            seed: Names the instance; shared by the members of a group.
            noise_seed: Names the chance inside the episode; different for each member.
        """
        self._clear()
        text, _ = self.environment.reset(seed=seed, options={"noise_seed": noise_seed})
        self._log.append(text)
        return self._prompt(None)

    def act(self, reply: str) -> TurnResult:
        """Runs the actions of a reply.

        Any text is accepted: an invalid reply costs the penalty and brings a warning, no error.

        Args:
            reply: The decoded text that the policy sampled.

        Returns:
            What the turn brought.

        Raises:
            EpisodeOverError: The episode has ended or was never started.
        """
        if self._over:
            raise EpisodeOverError("a reply after the end of the episode\nhint: call `start` first")
        parsed = parse_reply(
            reply,
            action_names=self.environment.action_names,
            max_actions=self.tag.max_actions_per_turn,
            thinking=self._thinking,
        )
        self._turns += 1
        executed, reward, numbers = self._execute(parsed.executable)
        self._over = self._terminated or self._truncated
        if not self._over and (
            self._turns >= self.tag.max_turns or self._num_actions >= self.tag.max_actions
        ):
            self._truncated = self._over = True
        valid = parsed.is_valid
        penalty = 0.0 if valid else -self._invalid_penalty
        metrics = {
            "num_actions": float(len(executed)),
            "num_actions_dropped": float(len(parsed.actions) - len(parsed.kept)),
            "num_actions_effective": numbers.pop("action_effective", 0.0),
            "reply_valid": float(valid),
            "reply_parsed": float(bool(parsed.kept)),
        }
        self._totals.update({**metrics, "reward": reward, "penalty": penalty})
        last_turn = LastTurn(reward=reward + penalty, valid=valid)
        return TurnResult(
            actions=executed,
            valid=valid,
            reward=reward,
            penalty=penalty,
            terminated=self._terminated,
            truncated=self._truncated,
            next_prompt=None if self._over else self._prompt(last_turn),
            metrics=MappingProxyType(metrics | numbers),
        )

    def _execute(self, actions: tuple[str, ...]) -> tuple[tuple[str, ...], float, dict[str, float]]:
        """Steps through the actions while the episode and its budget last."""
        executed: list[str] = []
        reward = 0.0
        effective = 0.0
        numbers: dict[str, float] = {}
        for action in actions[: self.tag.max_actions - self._num_actions]:
            text, gained, self._terminated, self._truncated, numbers = self.environment.step(action)
            executed.append(action)
            reward += gained
            effective += numbers["action_effective"]
            self._success = bool(numbers["success"])
            if self._terminated or self._truncated:
                break
        if executed:
            self._log.append(text)
            numbers = {
                name: value
                for name, value in numbers.items()
                if name not in ("action_valid", "success")
            } | {"action_effective": effective}
        else:
            self._log.append(self._log[-1])
        self._num_actions += len(executed)
        return tuple(executed), reward, numbers

    def _prompt(self, last_turn: LastTurn | None) -> str:
        return render_turn(
            self.environment,
            style=self.tag.prompt,
            instruction=self.tag.instruction,
            budget=Budget(
                num_actions_left=self.tag.max_actions - self._num_actions,
                max_actions_per_turn=self.tag.max_actions_per_turn,
                reply_tokens=self.tag.reply_tokens_hint,
            ),
            last_turn=last_turn,
            thinking=self._thinking,
        )

    @property
    def observations(self) -> tuple[str, ...]:
        """The state before the first turn and after each one."""
        return tuple(self._log)

    @property
    def success(self) -> bool:
        """The environment's own rule, never derived from the end flags."""
        return self._success

    @property
    def terminated(self) -> bool:
        """Whether the environment ended the episode."""
        return self._terminated

    @property
    def truncated(self) -> bool:
        """Whether a budget or bound ended the episode first."""
        return self._truncated

    @property
    def turns(self) -> int:
        """How many replies were run."""
        return self._turns

    @property
    def level(self) -> str:
        """The instance, equal for instances that are equal up to symmetry."""
        return self.environment.level()

    @property
    def strata(self) -> str:
        """The kind of instance, for stratified reports."""
        return self.environment.strata()

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of the episode so far: sums over its turns, and shares of them."""
        turns = max(self._turns, 1)
        actions = max(self._num_actions, 1)
        return {
            "success": float(self._success),
            "terminated": float(self._terminated),
            "truncated": float(self._truncated),
            "num_turns": float(self._turns),
            "num_actions": float(self._num_actions),
            "num_actions_dropped": self._totals["num_actions_dropped"],
            "num_invalid_turns": self._turns - self._totals["reply_valid"],
            "valid_turn_share": self._totals["reply_valid"] / turns,
            "parsed_turn_share": self._totals["reply_parsed"] / turns,
            "effective_action_share": self._totals["num_actions_effective"] / actions,
            "reward": self._totals["reward"],
            "penalty": self._totals["penalty"],
        }
