"""The expected update against the exact gradient of the return, by enumeration.

Two turns of one token each on a small tree: three first actions lead to two states, in which three
actions are possible. Nine trajectories can be enumerated, and so can all groups of two or three.
The expected gradient of the loss must point along the exact gradient of the expected return; for
estimators that divide by a deviation, along that of the objective that they state.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from models.estimators import (
    GroupEstimator,
    gae,
    group_advantages,
    rewards_to_go,
    whiten,
)
from models.losses import Normaliser, clipped_policy_loss, reduce_losses
from models.settings import Reduction

LIMIT = 2.0  # degrees
STATE_AFTER = (1, 1, 2)  # of the first action; state 0 is the start
TREE = list(itertools.product(range(3), range(3)))
FIRST_REWARD = np.array([0.3, -0.5, 0.0])
LAST_REWARD = np.array([[0.0, 0.0, 0.0], [1.0, -0.4, 0.7], [0.2, 2.0, -1.0]])
GRADED = {(a, b): (FIRST_REWARD[a], LAST_REWARD[STATE_AFTER[a], b]) for a, b in TREE}
BINARY = {(a, b): (0.0, float((a, b) in {(0, 1), (2, 2), (2, 0)})) for a, b in TREE}
Rewards = dict[tuple[int, int], tuple[float, float]]
Trajectory = tuple[int, int]
# tokens of an episode: prompt, first action, observation between the turns, second action
SAMPLED = np.array([False, True, False, True])
Estimate = Callable[[Sequence[Trajectory], Rewards], list[np.ndarray]]


def parameters() -> Tensor:
    theta = torch.tensor(
        np.random.default_rng(0).normal(0, 0.7, (3, 3)), dtype=torch.float64, requires_grad=True
    )
    return theta


def token_log_probs(theta: Tensor, path: Trajectory) -> Tensor:
    """Log-probs of the two sampled tokens."""
    log_p = theta.log_softmax(-1)
    return torch.stack([log_p[0, path[0]], log_p[STATE_AFTER[path[0]], path[1]]])


def exact_gradient(rewards: Rewards) -> Tensor:
    theta = parameters()
    value = sum(token_log_probs(theta, path).sum().exp() * sum(rewards[path]) for path in TREE)
    value.backward()
    return theta.grad


def groups(size: int) -> Iterator[tuple[tuple[Trajectory, ...], float]]:
    """Every group of independent trajectories, with its probability."""
    with torch.no_grad():
        chance = {path: float(token_log_probs(parameters(), path).sum().exp()) for path in TREE}
    for members in itertools.product(TREE, repeat=size):
        yield members, math.prod(chance[path] for path in members)


def expected_update(rewards: Rewards, estimate: Estimate, *, size: int) -> Tensor:
    """Expected descent direction of the project's own loss at its first update."""
    total = torch.zeros(3, 3, dtype=torch.float64)
    for members, chance in groups(size):
        theta = parameters()
        log_probs = torch.cat([token_log_probs(theta, path) for path in members])
        ratio = torch.exp(log_probs - log_probs.detach())
        advantages = [row[SAMPLED] for row in estimate(members, rewards)]
        losses = clipped_policy_loss(
            ratio,
            torch.from_numpy(np.concatenate(advantages)),
            clip_low=0.2,
            clip_high=0.28,
            dual_clip=3.0,
        )
        counts = [2] * size
        loss = reduce_losses(
            losses,
            counts,
            torch.ones(size, dtype=torch.float64),
            reduction=Reduction.SEQ_MEAN_TOKEN_SUM,
            normaliser=Normaliser.of(counts, weights=[1.0] * size, longest=4),
        )
        loss.backward()
        total -= chance * theta.grad
    return total


def stated_objective(rewards: Rewards, weight: Callable, *, size: int) -> Tensor:
    """Gradient of E[sum over members and tokens of weight x log-prob], weights held fixed."""
    theta = parameters()
    total = torch.zeros((), dtype=torch.float64)
    for members, chance in groups(size):
        weights = weight([rewards[path] for path in members])
        for path, pair in zip(members, weights, strict=True):
            total = total + chance * (token_log_probs(theta, path) * torch.tensor(pair)).sum()
    total.backward()
    return theta.grad


def angle(one: Tensor, other: Tensor) -> float:
    """Degrees between two directions; a direction that is not finite has none."""
    assert torch.isfinite(one).all()
    assert torch.isfinite(other).all()
    cosine = torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0)
    return math.degrees(math.acos(max(-1.0, min(1.0, float(cosine)))))


def on_tokens(per_episode: np.ndarray) -> list[np.ndarray]:
    return [np.where(SAMPLED, value, 0.0) for value in per_episode]


def by_group(estimator: GroupEstimator, sign: float = 1.0) -> Estimate:
    def estimate(members: Sequence[Trajectory], rewards: Rewards) -> list[np.ndarray]:
        returns = np.array([sum(rewards[path]) for path in members])
        ids = np.full(len(members), "group")
        return on_tokens(sign * group_advantages(returns, ids, estimator=estimator))

    return estimate


def paid(pair: tuple[float, float]) -> np.ndarray:
    return np.array([0.0, pair[0], 0.0, pair[1]])


def with_critic(members: Sequence[Trajectory], rewards: Rewards) -> list[np.ndarray]:
    """PPO's: GAE with an arbitrary critic, whose values only depend on the state."""
    found = []
    for path in members:
        values = np.array([0.0, 0.4, 9.0, (0.0, -0.8, 1.3)[STATE_AFTER[path[0]]]])
        found.append(
            gae(rewards=paid(rewards[path]), values=values, mask=SAMPLED, gamma=1.0, lam=1.0)[0]
        )
    return found


def reinforce_pp(members: Sequence[Trajectory], rewards: Rewards) -> list[np.ndarray]:
    rows = [rewards_to_go(paid(rewards[path]), mask=SAMPLED, gamma=1.0) for path in members]
    flat = whiten(np.concatenate(rows), np.tile(SAMPLED, len(members)))
    return np.split(flat, len(members))


def reinforce_pp_baseline(members: Sequence[Trajectory], rewards: Rewards) -> list[np.ndarray]:
    rows = by_group(GroupEstimator.DR_GRPO)(members, rewards)
    flat = whiten(np.concatenate(rows), np.tile(SAMPLED, len(members)))
    return np.split(flat, len(members))


@pytest.mark.parametrize("rewards", [GRADED, BINARY], ids=["graded", "binary"])
@pytest.mark.parametrize(
    ("estimate", "size"),
    [
        (with_critic, 1),
        (by_group(GroupEstimator.RLOO), 2),
        (by_group(GroupEstimator.RLOO), 3),
        (by_group(GroupEstimator.DR_GRPO), 3),
    ],
    ids=["ppo", "rloo of 2", "rloo of 3", "dr_grpo of 3"],
)
def test_the_expected_update_follows_the_gradient_of_the_return(rewards, estimate, size) -> None:
    found = expected_update(rewards, estimate, size=size)
    assert angle(found, exact_gradient(rewards)) < LIMIT


def test_grpo_follows_the_gradient_of_the_success_probability() -> None:
    found = expected_update(BINARY, by_group(GroupEstimator.GRPO), size=3)
    assert angle(found, exact_gradient(BINARY)) < LIMIT


def grpo_weight(pairs: list[tuple[float, float]]) -> list[list[float]]:
    returns = [sum(pair) for pair in pairs]
    mean = sum(returns) / len(returns)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in returns) / (len(returns) - 1))
    return [
        [0.0, 0.0] if deviation < 1e-9 else [(value - mean) / deviation] * 2 for value in returns
    ]


def whitened_weight(rows: list[list[float]]) -> list[list[float]]:
    flat = [value for row in rows for value in row]
    mean = sum(flat) / len(flat)
    variance = sum((value - mean) ** 2 for value in flat) / (len(flat) - 1)
    return [[(value - mean) / math.sqrt(variance + 1e-8) for value in row] for row in rows]


def reinforce_weight(pairs: list[tuple[float, float]]) -> list[list[float]]:
    return whitened_weight([[first + last, last] for first, last in pairs])


def baseline_weight(pairs: list[tuple[float, float]]) -> list[list[float]]:
    mean = sum(map(sum, pairs)) / len(pairs)
    return whitened_weight([[sum(pair) - mean] * 2 for pair in pairs])


@pytest.mark.parametrize(
    ("estimate", "weight"),
    [
        (by_group(GroupEstimator.GRPO), grpo_weight),
        (reinforce_pp, reinforce_weight),
        (reinforce_pp_baseline, baseline_weight),
    ],
    ids=["grpo", "reinforce_pp", "reinforce_pp_baseline"],
)
def test_normalised_estimators_follow_the_objective_that_they_state(estimate, weight) -> None:
    found = expected_update(GRADED, estimate, size=3)
    assert angle(found, stated_objective(GRADED, weight, size=3)) < LIMIT


def shifted(members: Sequence[Trajectory], rewards: Rewards) -> list[np.ndarray]:
    """A fault: each turn is paid the other turn's reward."""
    swapped = {path: (last, first) for path, (first, last) in rewards.items()}
    return with_critic(members, swapped)


def with_exact_critic(mask: np.ndarray) -> Estimate:
    """GAE with lambda 0, unbiased with the policy's own values; the observation's is absurd.

    With lambda 1 and gamma 1 the sum telescopes through any value of the observation: no fault of
    the mask would show.
    """
    with torch.no_grad():
        policy = parameters().softmax(-1).numpy()
    last = (policy * LAST_REWARD).sum(-1)
    start = float(policy[0] @ (FIRST_REWARD + last[list(STATE_AFTER)]))

    def estimate(members: Sequence[Trajectory], rewards: Rewards) -> list[np.ndarray]:
        found = []
        for path in members:
            values = np.array([0.0, start, 9.0, last[STATE_AFTER[path[0]]]])
            pay = paid(rewards[path])
            found.append(gae(rewards=pay, values=values, mask=mask, gamma=1.0, lam=0.0)[0])
        return found

    return estimate


def test_an_observation_between_the_turns_does_not_turn_the_update() -> None:
    found = expected_update(GRADED, with_exact_critic(SAMPLED), size=1)
    assert angle(found, exact_gradient(GRADED)) < LIMIT


@pytest.mark.parametrize(
    ("estimate", "size"),
    [
        (by_group(GroupEstimator.RLOO, sign=-1.0), 2),
        (shifted, 1),
        (with_exact_critic(np.ones(4, dtype=np.bool_)), 1),
    ],
    ids=["wrong sign", "rewards at the wrong turn", "through the observation"],
)
def test_the_check_finds_faults(estimate, size) -> None:
    found = expected_update(GRADED, estimate, size=size)
    assert angle(found, exact_gradient(GRADED)) > LIMIT
