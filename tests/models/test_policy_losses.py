"""GSPO and CISPO: values, gradients, and that they stay global over the step."""

import numpy as np
import pytest
import torch
from tiny_policy import gradient_job, tiny_batch, tiny_parameters

from models.gradients import compute_gradient
from models.losses import sequence_ratios, weighted_log_prob_loss
from models.settings import LossSettings, PolicyLoss, Reduction
from models.trainer import normaliser_of


def test_gspos_ratio_is_the_geometric_mean_over_the_sequence():
    difference = torch.tensor([0.1, 0.3, -0.2], dtype=torch.float64)
    found = sequence_ratios(difference, [2, 1])
    assert found.tolist() == pytest.approx(np.exp([0.2, 0.2, -0.2]).tolist())


def test_gspo_gives_each_token_its_share_of_the_sequences_gradient():
    difference = torch.tensor([0.1, 0.3], dtype=torch.float64, requires_grad=True)
    sequence_ratios(difference, [2]).mean().backward()
    # d/d(log p_t) of exp(mean) = exp(mean) / T
    assert difference.grad.tolist() == pytest.approx([float(np.exp(0.2)) / 2] * 2)


def test_cispo_keeps_the_gradient_of_a_token_outside_the_clip_range():
    log_p = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    ratio = torch.tensor([9.0, 0.1], dtype=torch.float64)
    loss = weighted_log_prob_loss(
        log_p, ratio, torch.tensor([2.0, -1.0]), clip_low=0.2, clip_high=0.28
    )
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([1.28 * 2.0 * 1.0, 0.8 * -2.0])
    assert log_p.grad.tolist() == pytest.approx([-1.28 * 2.0, 0.8])


@pytest.mark.parametrize("policy", list(PolicyLoss))
def test_all_policy_losses_have_the_same_gradient_at_ratio_one(policy):
    batch = tiny_batch()
    loss = LossSettings(policy=policy, reduction=Reduction.SEQ_MEAN_TOKEN_MEAN)
    expected = loss.model_copy(update={"policy": PolicyLoss.PPO})
    one, other = (compute_gradient(gradient_job(batch, loss=item)) for item in (loss, expected))
    for name, gradient in one.gradients.items():
        np.testing.assert_allclose(gradient, other.gradients[name], atol=1e-5)


@pytest.mark.parametrize("policy", [PolicyLoss.GSPO, PolicyLoss.CISPO])
@pytest.mark.parametrize("micro_tokens", [1, 20])
def test_A12_micro_batches_change_only_rounding(policy, micro_tokens):
    batch = tiny_batch()
    options = {
        "loss": LossSettings(policy=policy),
        "normaliser": normaliser_of(batch),
        "parameters": tiny_parameters(seed=4),
    }
    whole = compute_gradient(gradient_job(batch, **options))
    parts = compute_gradient(gradient_job(batch, micro_tokens=micro_tokens, **options))
    for name, gradient in parts.gradients.items():
        np.testing.assert_allclose(gradient, whole.gradients[name], atol=1e-5)


def test_the_loss_scale_multiplies_the_policys_gradient():
    batch = tiny_batch()
    whole = compute_gradient(gradient_job(batch))
    half = compute_gradient(gradient_job(batch, loss_scale=0.5))
    for name, gradient in half.gradients.items():
        np.testing.assert_allclose(gradient, 0.5 * whole.gradients[name], atol=1e-7)
