"""What a played episode is paid: the environment's own rewards, or a user's reward function.

A reward function gets the whole episode and returns one number per turn, or a single number that is
paid at the last turn. It is named by import path, `package.module:name`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from envs.entry_points import load_entry_point
from envs.errors import EntryPointError, EpisodeFailure


class RewardTiming(StrEnum):
    """When the rewards of an episode are paid."""

    TURN = "turn"
    """Each turn's reward at the end of its reply."""
    TRAJECTORY = "trajectory"
    """Their sum at the end of the last reply."""


@dataclass(frozen=True)
class PlayedEpisode:
    """What a reward function sees; lists have one entry per turn.

    Attributes:
        observations: State before each turn, and after the last one.
        replies: Decoded replies.
        actions: Names of the executed actions.
        valid: Whether the reply cost no penalty.
        rewards: What the environment paid, penalties not included.
        success: The environment's own rule.
        terminated: The environment ended the episode.
        truncated: A budget ended it.
        metrics: Numbers of the episode.
    """

    observations: tuple[str, ...]
    replies: tuple[str, ...]
    actions: tuple[tuple[str, ...], ...]
    valid: tuple[bool, ...]
    rewards: tuple[float, ...]
    success: bool
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float]


RewardFunction = Callable[[PlayedEpisode], float | Sequence[float]]


def load_reward(path: str) -> RewardFunction:
    """The reward function of an import path.

    Raises:
        EntryPointError: There is none, or it cannot be called.
    """
    function: RewardFunction = load_entry_point(path)
    if not callable(function):
        raise EntryPointError(
            f"`{path}` cannot be called\nhint: a reward is a function of a `PlayedEpisode`"
        )
    return function


def turn_rewards(
    played: PlayedEpisode, *, function: RewardFunction | None, timing: RewardTiming
) -> list[float]:
    """What each turn is paid, penalties not included.

    Args:
        played: The episode.
        function: A user's, or None for the environment's own rewards.
        timing: When it is paid.

    Raises:
        EpisodeFailure: The function failed, or gave a wrong number of rewards or one that is not
            finite; the episode is errored, and no estimator uses it (A5).
    """
    rewards = list(played.rewards)
    if function is not None:
        try:
            found = function(played)
            if isinstance(found, int | float):
                rewards = [0.0] * (len(rewards) - 1) + [float(found)]
            else:
                rewards = [float(reward) for reward in found]
        except Exception as error:
            raise EpisodeFailure(
                f"the reward function raised {type(error).__name__}: {error}"
            ) from error
    if len(rewards) != len(played.rewards) or not all(map(math.isfinite, rewards)):
        raise EpisodeFailure(
            f"rewards {rewards} for {len(played.rewards)} turns\n"
            "hint: a reward function returns one finite number, or one per turn"
        )
    if timing is RewardTiming.TRAJECTORY:
        return [0.0] * (len(rewards) - 1) + [math.fsum(rewards)]
    return rewards
