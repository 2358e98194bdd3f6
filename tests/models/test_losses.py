import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.losses import (
    Normaliser,
    clipped_policy_loss,
    importance_weights,
    kl_estimate,
    reduce_losses,
    value_loss,
)
from models.settings import KLEstimator, LossSettings, Reduction

CLIP = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}


def clipped(ratio: float, advantage: float, **changes: float | None) -> tuple[float, float]:
    """Loss and its derivative with respect to the ratio."""
    r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    loss = clipped_policy_loss(r, torch.tensor(advantage), **{**CLIP, **changes})
    loss.backward()
    return float(loss.detach()), float(r.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 2.0, -2.56, 0.0),  # above 1 + high, good: flat
        (0.5, 2.0, -1.0, -2.0),  # below 1 - low, good: still pulled back
        (0.5, -2.0, 1.6, 0.0),  # below 1 - low, bad: flat
        (1.5, -2.0, 3.0, 2.0),  # above, bad: still pushed down
        (5.0, -2.0, 6.0, 0.0),  # dual clip
    ],
)
def test_the_clipped_loss_and_its_slope_in_every_region(ratio, advantage, loss, slope):
    assert clipped(ratio, advantage) == pytest.approx((loss, slope))


def test_without_dual_clip_a_bad_token_is_unbounded():
    assert clipped(50.0, -1.0, dual_clip=None) == pytest.approx((50, 1))


@given(st.floats(-3, 3))
def test_kl_estimators_in_closed_form(d):
    found = {
        name: float(kl_estimate(torch.tensor(d, dtype=torch.float64), estimator=name))
        for name in KLEstimator
    }
    assert found == pytest.approx(
        {"k1": d, "abs": abs(d), "k2": d * d / 2, "k3": math.exp(-d) + d - 1}, abs=1e-9
    )


@pytest.mark.parametrize("estimator", [KLEstimator.K1, KLEstimator.K3])
def test_unbiased_kl_estimators_average_to_the_kl(estimator):
    policy = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    reference = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    difference = policy.log() - reference.log()
    expected = (policy * difference).sum()
    assert (policy * kl_estimate(difference, estimator=estimator)).sum() == pytest.approx(expected)


def test_value_loss_takes_the_worse_of_moved_and_clipped():
    values, old = torch.tensor([1.0, 1.0, 0.2]), torch.tensor([0.0, 0.0, 0.0])
    returns = torch.tensor([2.0, -1.0, 1.0])
    expected = [max(1, 1.5**2) / 2, max(4, 1.5**2) / 2, 0.8**2 / 2]
    assert value_loss(values, old, returns, clip=0.5).tolist() == pytest.approx(expected)
    assert value_loss(values, old, returns, clip=None).tolist() == pytest.approx([0.5, 2, 0.32])


def test_importance_weights_are_the_ratio_up_to_the_cap():
    old, sampler = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -3.0, -0.5])
    found = importance_weights(old, sampler, cap=2.0).tolist()
    assert found == pytest.approx([1, 2, math.exp(-0.5)])


def reduced(rows: list[list[float]], weights: list[float], reduction: Reduction) -> float:
    counts = [len(row) for row in rows]
    return float(
        reduce_losses(
            torch.tensor([value for row in rows for value in row], dtype=torch.float64),
            counts,
            torch.tensor(weights, dtype=torch.float64),
            reduction=reduction,
            normaliser=Normaliser.of(counts, weights=weights, longest=10),
        )
    )


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (Reduction.TOKEN_MEAN, (1 + 2 + 3 + 6) / 4),
        (Reduction.SEQ_MEAN_TOKEN_SUM, (6 + 6) / 2),
        (Reduction.SEQ_MEAN_TOKEN_MEAN, (2 + 6) / 2),
        (Reduction.SEQ_MEAN_TOKEN_SUM_NORM, (6 + 6) / (3 * 10)),
    ],
)
def test_A13_each_reduction_in_closed_form(reduction, expected):
    assert reduced([[1, 2, 3], [6], []], [1, 1, 1], reduction) == pytest.approx(expected)


def test_A13_only_the_token_mean_and_sums_weigh_long_replies_more():
    long_bad = [[-1.0] * 9, [1.0]]
    assert reduced(long_bad, [1, 1], Reduction.SEQ_MEAN_TOKEN_MEAN) == pytest.approx(0)
    assert reduced(long_bad, [1, 1], Reduction.TOKEN_MEAN) == pytest.approx(-0.8)


@pytest.mark.parametrize("reduction", list(Reduction))
def test_A14_rows_of_weight_zero_are_padding_and_change_nothing(reduction):
    alone = reduced([[1, 2], [5]], [1, 1], reduction)
    padded = reduced([[1, 2], [5], [7, 7, 7]], [1, 1, 0], reduction)
    assert padded == pytest.approx(alone)


@pytest.mark.parametrize("reduction", list(Reduction))
def test_I4_an_episode_in_two_sequences_of_half_weight_weighs_one(reduction):
    whole = reduced([[1, 2], [5]], [1, 1], reduction)
    twice = reduced([[1, 2], [1, 2], [5]], [0.5, 0.5, 1], reduction)
    assert twice == pytest.approx(whole)


@pytest.mark.parametrize("reduction", list(Reduction))
def test_A12_the_parts_of_a_step_add_up_to_the_whole(reduction):
    rng = np.random.default_rng(0)
    counts = [3, 1, 4, 2]
    losses = torch.from_numpy(rng.normal(size=sum(counts)))
    weights = torch.tensor([1.0, 0.5, 0.5, 1.0], dtype=torch.float64)
    normaliser = Normaliser.of(counts, weights=weights.tolist(), longest=7)
    options = {"reduction": reduction, "normaliser": normaliser}
    whole = reduce_losses(losses, counts, weights, **options)
    parts = [
        reduce_losses(part, [count], weight[None], **options)
        for part, count, weight in zip(losses.split(counts), counts, weights, strict=True)
    ]
    assert float(sum(parts)) == pytest.approx(float(whole))


def test_a_step_without_any_token_has_loss_zero():
    for reduction in Reduction:
        assert reduced([[], []], [1, 1], reduction) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"clip_low": 1.0},
        {"dual_clip": 0.5},
        {"reduction": "mean"},
        {"kl": 1},
        {"importance_cap": 0},
    ],
)
def test_bad_loss_settings_are_refused(change):
    with pytest.raises(ValidationError):
        LossSettings(**change)
