"""The gradient of one lane's part of an optimiser step, on packed sequences without padding."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from models.critic import Critic, build_critic
from models.decoder import Decoder, DecoderConfig
from models.log_probs import packed_log_probs
from models.losses import (
    Normaliser,
    clipped_policy_loss,
    importance_weights,
    kl_estimate,
    reduce_losses,
    sequence_ratios,
    value_loss,
    weighted_log_prob_loss,
)
from models.policy import build_decoder
from models.settings import KLEstimator, LossSettings, PolicyLoss
from models.training_data import (
    Parameters,
    TrainingSequence,
    micro_batches,
    sampled_entries,
    tensors_of,
)

RATIO_MAX = "ratio_max"  # the one sum that is a maximum


@dataclass(frozen=True)
class GradientJob:
    """What a lane needs for its part of an optimiser step.

    Attributes:
        config: Shape of the policy.
        parameters: Its weights by name.
        critic: The critic's weights, or None without one.
        sequences: The lane's sequences.
        loss: The loss.
        temperature: That of the sampling distribution.
        normaliser: Sizes of the whole step, over all lanes.
        micro_tokens: Most tokens of a micro-batch; a longer sequence is one of its own.
        loss_scale: Multiplies the policy's loss, not the critic's.
    """

    config: DecoderConfig
    parameters: Parameters
    critic: Parameters | None
    sequences: list[TrainingSequence]
    loss: LossSettings
    temperature: float
    normaliser: Normaliser
    micro_tokens: int
    loss_scale: float = 1.0


@dataclass(frozen=True)
class GradientResult:
    """A lane's gradients by name, and sums over its tokens for the metrics."""

    gradients: Parameters
    critic_gradients: Parameters
    sums: dict[str, float]


def compute_gradient(job: GradientJob) -> GradientResult:
    """Gradient of the lane's part of the step's loss."""
    decoder = build_decoder(job.config, tensors_of(job.parameters))
    critic = build_critic(job.config, tensors_of(job.critic)) if job.critic is not None else None
    sums: dict[str, float] = {}
    for batch in micro_batches(job.sequences, limit=job.micro_tokens):
        _backward(decoder, critic, batch, job, sums)
    return GradientResult(
        gradients=gradients_of(decoder),
        critic_gradients=gradients_of(critic.decoder) | _head_gradient(critic) if critic else {},
        sums=sums,
    )


def _backward(
    decoder: Decoder,
    critic: Critic | None,
    batch: list[TrainingSequence],
    job: GradientJob,
    sums: dict[str, float],
) -> None:
    """Adds the micro-batch's gradients to the parameters and its numbers to the sums."""
    masks = [item.sampled for item in batch]
    tokens = torch.from_numpy(np.concatenate([item.tokens for item in batch])).long()
    log_probs, entropies = packed_log_probs(
        decoder,
        tokens=tokens,
        lengths=[len(item.tokens) for item in batch],
        predict=torch.from_numpy(np.concatenate(masks)),
        temperature=job.temperature,
    )
    losses, numbers = _policy_losses(log_probs, entropies, batch, settings=job.loss)
    loss = job.loss_scale * reduce_losses(
        losses,
        [int(mask.sum()) for mask in masks],
        torch.tensor([item.weight for item in batch]),
        reduction=job.loss.reduction,
        normaliser=job.normaliser,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    numbers["loss"] = float(loss.detach())
    if critic is not None:
        numbers |= _critic_backward(critic, batch, tokens=tokens, job=job)
    for name, value in numbers.items():
        join = max if name == RATIO_MAX else float.__add__
        sums[name] = join(sums.get(name, 0.0), value)


def _policy_losses(
    log_probs: Tensor, entropies: Tensor, batch: list[TrainingSequence], *, settings: LossSettings
) -> tuple[Tensor, dict[str, float]]:
    """Loss of each sampled token, [M], and the sums that the metrics need."""
    masks = [item.sampled for item in batch]
    advantages = sampled_entries([item.advantages for item in batch], masks)
    sampler = sampled_entries([item.logprobs for item in batch], masks)
    old = sampler
    if settings.importance_cap is not None:
        old = sampled_entries([item.needed("old_logprobs") for item in batch], masks)
    difference = log_probs - old
    ratio = difference.exp()
    if settings.policy is PolicyLoss.GSPO:
        ratio = sequence_ratios(difference, [int(mask.sum()) for mask in masks if mask.any()])
    bounds = {"clip_low": settings.clip_low, "clip_high": settings.clip_high}
    if settings.policy is PolicyLoss.CISPO:
        losses = weighted_log_prob_loss(log_probs, ratio, advantages, **bounds)
    else:
        losses = clipped_policy_loss(ratio, advantages, dual_clip=settings.dual_clip, **bounds)
    if settings.importance_cap is not None:
        losses = losses * importance_weights(old, sampler, cap=settings.importance_cap)
    if settings.entropy_coefficient:
        losses = losses - settings.entropy_coefficient * entropies
    outside = ((ratio > 1 + settings.clip_high) & (advantages > 0)) | (
        (ratio < 1 - settings.clip_low) & (advantages < 0)
    )
    moved = difference.detach()
    numbers = {
        "tokens": float(len(losses)),
        "entropy": float(entropies.detach().sum()),
        "clipped": float(outside.sum()),
        "kl": float(kl_estimate(-moved, estimator=KLEstimator.K3).sum()),
        "gap": float((log_probs.detach() - sampler).abs().sum()),
        RATIO_MAX: float(ratio.detach().max()) if len(losses) else 0.0,
    }
    if settings.kl_in_loss:
        reference = sampled_entries([item.needed("reference_logprobs") for item in batch], masks)
        divergence = kl_estimate(log_probs - reference, estimator=settings.kl_estimator)
        losses = losses + settings.kl_coefficient * divergence
        numbers["reference_kl"] = float(divergence.detach().sum())
    return losses, numbers


def _critic_backward(
    critic: Critic, batch: list[TrainingSequence], *, tokens: Tensor, job: GradientJob
) -> dict[str, float]:
    lengths, masks = [len(item.tokens) for item in batch], [item.sampled for item in batch]
    wanted = torch.nonzero(torch.from_numpy(np.concatenate(masks))).squeeze(-1)
    values = critic.values(tokens, lengths, at=wanted - 1)
    returns = sampled_entries([item.returns for item in batch], masks)
    losses = value_loss(
        values,
        sampled_entries([item.values for item in batch], masks),
        returns,
        clip=job.loss.value_clip,
    )
    loss = reduce_losses(
        losses,
        [int(mask.sum()) for mask in masks],
        torch.tensor([item.weight for item in batch]),
        reduction=job.loss.reduction,
        normaliser=job.normaliser,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    return {
        "value_loss": float(loss.detach()),
        "value_error": float((values.detach() - returns).square().sum()),
    }


def gradients_of(module: nn.Module) -> Parameters:
    """Gradients by name, zeros where a parameter got none."""
    return {
        name: (torch.zeros_like(value) if value.grad is None else value.grad).numpy()
        for name, value in module.named_parameters()
    }


def _head_gradient(critic: Critic) -> Parameters:
    gradient = critic.value_head.grad
    head = critic.value_head
    return {"value_head.weight": (torch.zeros_like(head) if gradient is None else gradient).numpy()}
