"""Which groups to learn from: scores of groups and rules that choose among them.

The default rule is scale-free: multiplying all returns by a positive number keeps the same groups.
The published RAGEN-2 rule (arXiv 2604.06268) is kept for reproducing its settings.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

SCORE_DECIMALS = 5
"""Of scores relative to the largest: shards keep returns as float32, and ties must stay ties."""

ROUNDING = 1e-6
"""Share of the largest score, or of their sum, that such rounding may amount to."""


class Strategy(StrEnum):
    """How groups are chosen once they are ordered by score."""

    NONE = "none"
    """Every group, also those without any spread."""
    TOP_P = "top_p"
    """Groups in order until they hold the share `value` of the total score; 1 keeps all alive."""
    TOP_K = "top_k"
    """The share `value` of the number of groups."""
    TOP_K_ABS = "top_k_abs"
    """`value` groups."""
    MIN_P = "min_p"
    """Groups whose score is at least `value` times the best."""


class Metric(StrEnum):
    """The score of a group."""

    REWARD_STD = "reward_std"
    """Unbiased standard deviation of the returns."""
    REWARD = "reward"
    """Mean return."""
    REWARD_SUM = "reward_sum"
    """Sum of the returns."""
    ENTROPY = "entropy"
    """Mean surprisal of the members, nats per token: estimates the entropy without a bias, and
    needs nothing that an engine does not give."""
    ENTROPY_VARIANCE = "entropy_variance"
    """Unbiased variance of that between the members."""
    LENGTH = "length"
    """Mean number of sampled tokens of the members."""


class Rule(StrEnum):
    """Which definition of the strategies."""

    DEFAULT = "default"
    """Scale-free; groups without any score are never kept."""
    PARITY = "ragen2"
    """As published with RAGEN-2."""


class TopPMode(StrEnum):
    """How top-p turns scores into shares, parity rule only."""

    LINEAR = "linear"
    SOFTMAX = "softmax"


class LossScaling(StrEnum):
    """How the loss shrinks with the share of groups that the filter kept."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


def loss_scale(kept_share: float, *, scaling: LossScaling) -> float:
    """Factor of the policy's loss for a share of kept groups, in [0, 1]."""
    if scaling is LossScaling.NONE:
        return 1.0
    return kept_share if scaling is LossScaling.LINEAR else math.sqrt(kept_share)


class FilterSettings(BaseModel):
    """Which groups the update learns from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: Strategy = Field(default=Strategy.TOP_P, description="How groups are chosen.")
    value: float = Field(default=0.9, gt=0, description="The strategy's number.")
    metric: Metric = Field(default=Metric.REWARD_STD, description="The score of a group.")
    largest: bool = Field(default=True, description="Prefer large scores.")
    min_score: float = Field(default=0.0, ge=0, description="Scores up to it are not alive.")
    rule: Rule = Field(default=Rule.DEFAULT, description="default or ragen2.")
    include_zero: bool = Field(default=True, description="ragen2: groups with score 0 take part.")
    top_p_mode: TopPMode = Field(default=TopPMode.LINEAR, description="ragen2: linear or softmax.")
    eps: float = Field(default=0.01, ge=0, description="ragen2: slack of linear top-p.")
    loss_scaling: LossScaling = Field(
        default=LossScaling.NONE,
        description="The loss shrinks with the share of kept groups: none, linear or sqrt.",
    )
    refills: int = Field(
        default=0,
        ge=0,
        description="Further rollouts, at most, until as many groups are kept as one rollout has; "
        "0 learns from what is left.",
    )

    @model_validator(mode="after")
    def _check(self) -> "FilterSettings":
        shares = {Strategy.TOP_P, Strategy.TOP_K, Strategy.MIN_P}
        if self.strategy in shares and self.value > 1:
            raise ValueError(
                f"strategy `{self.strategy}` takes a share, value={self.value} is above 1"
                "\nhint: `filter.value=0.9`, or `filter.strategy=top_k_abs` for a number of groups"
            )
        if self.strategy is Strategy.TOP_K_ABS and not self.value.is_integer():
            raise ValueError(f"strategy `top_k_abs` takes a whole number, not {self.value}")
        return self


def group_scores(groups: Sequence[NDArray[np.float64]], *, metric: Metric) -> NDArray[np.float64]:
    """Score of each group; shape [groups].

    Args:
        groups: What the metric is about of each group's members, at least two each for spreads:
            returns, mean surprisals or lengths.
        metric: The score.
    """
    if not groups:
        return np.zeros(0)
    sizes = [len(group) for group in groups]
    places = np.repeat(np.arange(len(groups)), sizes)
    return scores_by_place(np.concatenate(groups), places, metric=metric)


def scores_by_place(
    values: NDArray[np.float64], places: NDArray[np.int64], *, metric: Metric
) -> NDArray[np.float64]:
    """The same from one array; `places` numbers the groups from 0, without gaps.

    Args:
        values: [episodes]
        places: Group of each, [episodes].
        metric: The score.
    """
    sizes = np.bincount(places)
    sums = np.bincount(places, weights=values).astype(np.float64)
    if metric is Metric.REWARD_SUM:
        return sums
    means = sums / sizes
    if metric in {Metric.REWARD, Metric.ENTROPY, Metric.LENGTH}:
        return means
    squares = np.bincount(places, weights=(values - means[places]) ** 2)
    variances = squares / (sizes - 1)
    return variances if metric is Metric.ENTROPY_VARIANCE else np.sqrt(variances)


def keep_groups(scores: NDArray[np.float64], *, settings: FilterSettings) -> list[int]:
    """Indices of the kept groups, ascending.

    Args:
        scores: One per group, in order of group id; ties go to the lower index.
        settings: The filter.
    """
    if settings.strategy is Strategy.NONE:
        return list(range(len(scores)))
    rule = _parity if settings.rule is Rule.PARITY else _default
    return sorted(rule(scores, settings))


def _default(scores: NDArray[np.float64], settings: FilterSettings) -> list[int]:
    size = np.abs(scores)
    scale = size.max(initial=0.0)
    alive = np.flatnonzero((size > max(settings.min_score, 1e-9 * scale)) & (scores != 0))
    if not alive.size:
        return []
    scores = scores / scale
    # Rounded for the order alone: scores that differ by rounding only are ties at every scale.
    order = _ordered(np.round(scores, SCORE_DECIMALS), alive, largest=settings.largest)
    value, best = settings.value, scores[order[0]]
    if settings.strategy is Strategy.TOP_P:
        return order if value >= 1 else _linear_top_p(scores, order, settings)
    if settings.strategy is Strategy.MIN_P:
        if settings.largest:
            return [index for index in order if scores[index] >= value * best - ROUNDING]
        return [index for index in order if scores[index] * value <= best + ROUNDING]
    return order[: _count(settings, num_groups=len(scores), num_candidates=len(order))]


def _linear_top_p(
    scores: NDArray[np.float64], order: list[int], settings: FilterSettings
) -> list[int]:
    weights = scores[order]
    if weights.min() < 0:
        weights = weights - weights.min()
    if not settings.largest:
        weights = weights.max() - weights
    if not weights.any():
        weights = np.ones_like(weights)
    # The tolerance keeps 18 of 20 equal groups at 0.9, whichever way their sum was rounded.
    mass = np.cumsum(weights)
    reached = np.flatnonzero(mass >= (settings.value - ROUNDING) * mass[-1])
    return order[: int(reached[0]) + 1]


def _parity(scores: NDArray[np.float64], settings: FilterSettings) -> list[int]:
    candidates = np.arange(len(scores))
    if not settings.include_zero:
        candidates = np.flatnonzero(np.abs(scores) > 1e-10)
    if not candidates.size:
        return []
    order = _ordered(scores, candidates, largest=settings.largest)
    if settings.strategy is Strategy.TOP_P:
        return _parity_top_p(scores, order, settings)
    if settings.strategy is Strategy.MIN_P:
        chosen = scores[candidates]
        if settings.largest:
            return [i for i in order if scores[i] >= settings.value * chosen.max() - 1e-10]
        return [i for i in order if scores[i] <= chosen.min() / (settings.value + 1e-10) + 1e-10]
    return order[: _count(settings, num_groups=len(scores), num_candidates=len(order))]


def _parity_top_p(
    scores: NDArray[np.float64], order: list[int], settings: FilterSettings
) -> list[int]:
    if settings.value >= 1:
        return order
    if settings.top_p_mode is TopPMode.SOFTMAX:
        logits = scores[order] if settings.largest else -scores[order]
        mass = np.exp(logits - logits.max())
        reached = np.flatnonzero(np.cumsum(mass / mass.sum()) >= settings.value)
        return order[: int(reached[0]) + 1] if reached.size else order
    threshold = settings.value * scores[order].sum() - settings.eps
    kept: list[int] = []
    total = 0.0
    for index in order:
        if total >= threshold:
            return kept
        if scores[index] <= 0:
            break
        kept.append(index)
        total += scores[index]
    return kept if total >= threshold else []


def _ordered(
    scores: NDArray[np.float64], candidates: NDArray[np.int64], *, largest: bool
) -> list[int]:
    chosen = scores[candidates]
    order = np.argsort(-chosen if largest else chosen, kind="stable")
    return [int(index) for index in candidates[order]]


def _count(settings: FilterSettings, *, num_groups: int, num_candidates: int) -> int:
    asked = settings.value * num_groups if settings.strategy is Strategy.TOP_K else settings.value
    return min(max(int(asked), 1), num_candidates)
