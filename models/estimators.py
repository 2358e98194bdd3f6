"""Advantage estimators as pure functions; float64 in, float64 out.

Groups are formed by id, never by position. Tokens that the policy did not sample are skipped, so
inserting observation tokens changes nothing.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from models.errors import GroupError, TrainingDataError

Array = NDArray[np.float64]


class GroupEstimator(StrEnum):
    """Estimators that compare the members of a group."""

    GRPO = "grpo"
    """(R - mean) / (std + 1e-6), unbiased std (DeepSeekMath, 4.1.2)."""
    DR_GRPO = "dr_grpo"
    """R - mean (arXiv 2503.20783)."""
    RLOO = "rloo"
    """R - mean of the others (arXiv 2402.14740)."""


FLAT_SPREAD = {
    GroupEstimator.GRPO: 1e-6,
    GroupEstimator.DR_GRPO: 1e-6,
    GroupEstimator.RLOO: 1e-12,  # nothing is divided: only rounding has to go
}
"""Standard deviation, relative to max(1, largest |return|), up to which a group is flat."""


def gae(
    *,
    rewards: Array,
    values: Array,
    mask: NDArray[np.bool_],
    gamma: float,
    lam: float,
    bootstrap_value: float = 0.0,
) -> tuple[Array, Array]:
    """Generalised advantage estimation over the sampled tokens (arXiv 1506.02438, eq. 16).

    Args:
        rewards: Reward paid at each token, [T].
        values: Value of the state before each token, [T].
        mask: Sampled tokens, [T]; the others are skipped.
        gamma: Discount per sampled token.
        lam: Lambda.
        bootstrap_value: Value after the last token; 0 when the episode terminated.

    Returns:
        Advantages and returns (advantage + value), [T] each, 0 off the mask.
    """
    advantages, returns = np.zeros(len(rewards)), np.zeros(len(rewards))
    next_value, next_advantage = bootstrap_value, 0.0
    for t in np.flatnonzero(mask)[::-1]:
        delta = rewards[t] + gamma * next_value - values[t]
        next_advantage = delta + gamma * lam * next_advantage
        next_value = values[t]
        advantages[t] = next_advantage
        returns[t] = next_advantage + values[t]
    return advantages, returns


def bilevel_gae(
    *,
    turn_rewards: Array,
    values: Array,
    turn: NDArray[np.int16],
    gamma: float,
    lam: float,
    turn_gamma: float,
    bootstrap_value: float = 0.0,
) -> tuple[Array, Array]:
    """GAE over turns, then over the tokens of each turn (RAGEN, section on bi-level GAE).

    Turn ends come from the turn ids, so a turn without reward is a turn like any other (R3).

    Args:
        turn_rewards: Reward of each turn, paid at its last sampled token, [turns].
        values: Value of the state before each token, [T].
        turn: Turn of each sampled token, -1 elsewhere, [T].
        gamma: Discount per token inside a turn.
        lam: Lambda of both levels.
        turn_gamma: Discount per turn.
        bootstrap_value: Value after the last turn; 0 when the episode terminated.

    Returns:
        Advantages and returns, [T] each, 0 where not sampled.

    Raises:
        TrainingDataError: A turn has a reward and no token, or tokens and no reward.
    """
    _check_turns(turn, len(turn_rewards))
    advantages, returns = np.zeros(len(values)), np.zeros(len(values))
    next_value, next_advantage = bootstrap_value, 0.0
    for index in range(len(turn_rewards) - 1, -1, -1):
        tokens = np.flatnonzero(turn == index)
        value = values[tokens[-1]]
        delta = turn_rewards[index] + turn_gamma * next_value - value
        next_advantage = delta + turn_gamma * lam * next_advantage
        next_value = value
        rewards = np.zeros(len(tokens))
        rewards[-1] = next_advantage + value
        advantages[tokens], returns[tokens] = gae(
            rewards=rewards,
            values=values[tokens],
            mask=np.ones(len(tokens), dtype=np.bool_),
            gamma=gamma,
            lam=lam,
        )
    return advantages, returns


def _check_turns(turn: NDArray[np.int16], num_rewards: int) -> None:
    found = np.unique(turn[turn >= 0])
    if not np.array_equal(found, np.arange(num_rewards)):
        raise TrainingDataError(
            f"{num_rewards} turn rewards for the turns {found.tolist()}\n"
            "hint: turns count from 0, and each has a reward and at least one sampled token"
        )


def turn_gae(
    *,
    turn_rewards: Array,
    values: Array,
    turn: NDArray[np.int16],
    gamma: float,
    lam: float,
    bootstrap_value: float = 0.0,
) -> tuple[Array, Array]:
    """GAE whose actions are whole replies: every token of a turn gets the turn's advantage.

    The value of a turn is that of the state before its first token.

    Args:
        turn_rewards: Reward of each turn, [turns].
        values: Value of the state before each token, [T].
        turn: Turn of each sampled token, -1 elsewhere, [T].
        gamma: Discount per turn.
        lam: Lambda.
        bootstrap_value: Value after the last turn; 0 when the episode terminated.

    Returns:
        Advantages and returns, [T] each, 0 where not sampled.

    Raises:
        TrainingDataError: A turn has a reward and no token, or tokens and no reward.
    """
    _check_turns(turn, len(turn_rewards))
    starts = np.array([np.flatnonzero(turn == index)[0] for index in range(len(turn_rewards))])
    advantages, returns = gae(
        rewards=turn_rewards,
        values=values[starts] if len(starts) else np.zeros(0),
        mask=np.ones(len(turn_rewards), dtype=np.bool_),
        gamma=gamma,
        lam=lam,
        bootstrap_value=bootstrap_value,
    )
    return spread(advantages, turn), spread(returns, turn)


def spread(per_turn: Array, turn: NDArray[np.int16]) -> Array:
    """A number per turn at each of its sampled tokens, 0 elsewhere, [T]."""
    if not len(per_turn):
        return np.zeros(len(turn))
    return np.where(turn >= 0, per_turn[np.maximum(turn, 0)], 0.0)


def rewards_to_go(rewards: Array, *, mask: NDArray[np.bool_], gamma: float) -> Array:
    """Discounted sum of the rewards from each sampled token on, [T], 0 elsewhere (REINFORCE).

    Args:
        rewards: Reward paid at each token, [T].
        mask: Sampled tokens, [T]; the others are skipped.
        gamma: Discount per sampled token.
    """
    zeros = np.zeros(len(rewards))
    return gae(rewards=rewards, values=zeros, mask=mask, gamma=gamma, lam=1.0)[0]


class Normalisation(StrEnum):
    """What is made of episode returns before advantages are estimated."""

    IDENTITY = "identity"
    MEAN = "mean"
    """R - mean."""
    MEAN_STD = "mean_std"
    """(R - mean) / (std + 1e-6), unbiased std."""
    ASYMMETRIC = "asymmetric"
    """The same, cut to between -1 and 3: rare successes count more than common failures."""


def normalised_returns(returns: Array, groups: NDArray[np.str_], *, method: Normalisation) -> Array:
    """Returns relative to those of the same group; pass one group for a whole batch.

    Args:
        returns: Finite returns, [episodes].
        groups: Group of each episode, [episodes].
        method: How.
    """
    if method is Normalisation.IDENTITY or not len(returns):
        return returns
    estimator = GroupEstimator.DR_GRPO if method is Normalisation.MEAN else GroupEstimator.GRPO
    found = group_advantages(returns, groups, estimator=estimator)
    return np.clip(found, -1.0, 3.0) if method is Normalisation.ASYMMETRIC else found


def step_advantages(
    returns_to_go: Array,
    states: NDArray[np.str_],
    groups: NDArray[np.str_],
    *,
    divide_by_std: bool,
) -> Array:
    """Advantage of each turn over the turns of its group that began in the same state (GiGPO).

    A state that was met once has nothing to compare with and gives 0 (arXiv 2505.10978, eq. 6-8).

    Args:
        returns_to_go: Discounted return from each turn on, [turns].
        states: State that the turn began in, [turns].
        groups: Group of the turn's episode, [turns].
        divide_by_std: Whether differences are divided by the standard deviation.
    """
    pairs = zip(groups, states, strict=True)
    anchors = np.array([f"{group}\x00{state}" for group, state in pairs], dtype=np.str_)
    _, places, sizes = np.unique(anchors, return_inverse=True, return_counts=True)
    found = np.zeros(len(returns_to_go))
    often = sizes[places] > 1
    if often.any():
        estimator = GroupEstimator.GRPO if divide_by_std else GroupEstimator.DR_GRPO
        found[often] = group_advantages(returns_to_go[often], anchors[often], estimator=estimator)
    return found


def group_deviations(returns: Array, groups: NDArray[np.str_]) -> Array:
    """Unbiased standard deviation of each episode's group, [episodes]; 0 in a group of one."""
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    mean = np.bincount(places, weights=returns) / sizes
    squares = np.bincount(places, weights=(returns - mean[places]) ** 2)
    found: Array = np.sqrt(squares / np.maximum(sizes - 1, 1))[places]
    return found


def group_advantages(
    returns: Array, group_ids: NDArray[np.str_], *, estimator: GroupEstimator
) -> Array:
    """Advantage of each episode over the other members of its group.

    Returns that differ by rounding only give 0 for all (R2).

    Args:
        returns: Finite returns, [episodes].
        group_ids: Group of each episode, [episodes], in any order.
        estimator: Which.

    Raises:
        GroupError: A group of one, or a return that is not finite.

    Example:
        >>> ids = np.array(["a", "a"])
        >>> group_advantages(np.array([1.0, 0.0]), ids, estimator=GroupEstimator.DR_GRPO)
        array([ 0.5, -0.5])
    """
    if not np.isfinite(returns).all():
        raise GroupError("a return is not finite\nhint: drop errored episodes first")
    names, places, sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
    if (sizes < 2).any():
        raise GroupError(
            f"group `{names[sizes < 2][0]}` has one member, and nothing to compare it with\n"
            "hint: use a group size of at least 2, or a critic (`gae`)"
        )
    mean = np.bincount(places, weights=returns) / sizes
    centred = returns - mean[places]
    deviation = np.sqrt(np.bincount(places, weights=centred**2) / (sizes - 1))
    largest = np.zeros(len(names))
    np.maximum.at(largest, places, np.abs(returns))
    flat = deviation <= FLAT_SPREAD[estimator] * np.maximum(1.0, largest)
    if estimator is GroupEstimator.GRPO:
        centred = centred / (deviation[places] + 1e-6)
    elif estimator is GroupEstimator.RLOO:
        centred = centred * (sizes / (sizes - 1))[places]
    return np.where(flat[places], 0.0, centred)


def whiten(advantages: Array, mask: NDArray[np.bool_]) -> Array:
    """Mean 0 and deviation 1 over the mask: (A - mean) / sqrt(var + 1e-8), unbiased; 0 elsewhere.

    Args:
        advantages: [T]
        mask: [T]; with fewer than two positions all is 0, as nothing deviates.
    """
    chosen = advantages[mask]
    whitened = np.zeros(len(advantages))
    if len(chosen) > 1:
        whitened[mask] = (chosen - chosen.mean()) / np.sqrt(chosen.var(ddof=1) + 1e-8)
    return whitened
