"""The gradient of one lane's part of an optimiser step, on packed sequences without padding."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.critic import Critic, build_critic
from models.decoder import Decoder, DecoderConfig
from models.errors import TrainingDataError
from models.log_probs import packed_log_probs
from models.losses import (
    KLEstimator,
    LossSettings,
    Normaliser,
    clipped_policy_loss,
    kl_estimate,
    reduce_losses,
    value_loss,
)
from models.policy import build_decoder

Parameters = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class TrainingSequence:
    """One sequence to learn from.

    Attributes:
        tokens: int32, [T].
        sampled: Tokens in the loss: those that the policy sampled, bool, [T].
        logprobs: Log-probs of the sampling distribution, NaN where not sampled, float32, [T].
        advantages: float32, [T].
        returns: Targets of the critic, float32, [T].
        values: The critic's old values, float32, [T].
        weight: Weight of the sequence; the weights of an episode's sequences add up to one.

    Raises:
        TrainingDataError: Lengths differ, a sampled token has no log-prob, or the first is sampled.
    """

    tokens: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]
    returns: NDArray[np.float32]
    values: NDArray[np.float32]
    weight: float = 1.0

    def __post_init__(self) -> None:
        lists = (self.sampled, self.logprobs, self.advantages, self.returns, self.values)
        if any(len(item) != len(self.tokens) for item in lists):
            raise TrainingDataError("a training sequence has lists of unequal lengths")
        if np.any(self.sampled != np.isfinite(self.logprobs)):
            raise TrainingDataError("a token is sampled without a log-prob, or the other way round")
        if len(self.sampled) and self.sampled[0]:
            raise TrainingDataError("the first token of a sequence cannot be sampled")


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
    """

    config: DecoderConfig
    parameters: Parameters
    critic: Parameters | None
    sequences: list[TrainingSequence]
    loss: LossSettings
    temperature: float
    normaliser: Normaliser
    micro_tokens: int


@dataclass(frozen=True)
class GradientResult:
    """A lane's gradients by name, and sums over its tokens for the metrics."""

    gradients: Parameters
    critic_gradients: Parameters
    sums: dict[str, float]


def compute_gradient(job: GradientJob) -> GradientResult:
    """Gradient of the lane's part of the step's loss."""
    decoder = build_decoder(job.config, _tensors(job.parameters))
    critic = build_critic(job.config, _tensors(job.critic)) if job.critic is not None else None
    sums: dict[str, float] = {"ratio_max": 0.0}
    for batch in micro_batches(job.sequences, limit=job.micro_tokens):
        _backward(decoder, critic, batch, job, sums)
    return GradientResult(
        gradients=gradients_of(decoder),
        critic_gradients=gradients_of(critic.decoder) | _head_gradient(critic) if critic else {},
        sums=sums,
    )


def micro_batches(
    sequences: Sequence[TrainingSequence], *, limit: int
) -> Iterator[list[TrainingSequence]]:
    """Sequences of similar length together, up to `limit` tokens."""
    batch: list[TrainingSequence] = []
    size = 0
    for item in sorted(sequences, key=lambda item: len(item.tokens)):
        if batch and size + len(item.tokens) > limit:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item.tokens)
    if batch:
        yield batch


def _backward(
    decoder: Decoder,
    critic: Critic | None,
    batch: list[TrainingSequence],
    job: GradientJob,
    sums: dict[str, float],
) -> None:
    """Adds the micro-batch's gradients to the parameters and its numbers to the sums."""
    lengths = [len(item.tokens) for item in batch]
    masks = [item.sampled for item in batch]
    tokens = torch.from_numpy(np.concatenate([item.tokens for item in batch])).long()
    predict = torch.from_numpy(np.concatenate(masks))
    counts = [int(mask.sum()) for mask in masks]
    weights = torch.tensor([item.weight for item in batch])
    old = _masked([item.logprobs for item in batch], masks)
    advantages = _masked([item.advantages for item in batch], masks)
    log_probs, entropies = packed_log_probs(
        decoder, tokens=tokens, lengths=lengths, predict=predict, temperature=job.temperature
    )
    difference = log_probs - old
    ratio = difference.exp()
    settings = job.loss
    losses = clipped_policy_loss(
        ratio,
        advantages,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
    )
    if settings.entropy_coefficient:
        losses = losses - settings.entropy_coefficient * entropies
    policy_loss = reduce_losses(
        losses, counts, weights, reduction=settings.reduction, normaliser=job.normaliser
    )
    policy_loss.backward()  # type: ignore[no-untyped-call]
    outside = ((ratio > 1 + settings.clip_high) & (advantages > 0)) | (
        (ratio < 1 - settings.clip_low) & (advantages < 0)
    )
    numbers = {
        "tokens": float(len(losses)),
        "loss": float(policy_loss.detach()),
        "entropy": float(entropies.detach().sum()),
        "clipped": float(outside.sum()),
        "kl": float(kl_estimate(-difference.detach(), estimator=KLEstimator.K3).sum()),
        "gap": float(difference.detach().abs().sum()),
    }
    if critic is not None:
        numbers |= _critic_backward(critic, batch, tokens=tokens, job=job)
    for name, value in numbers.items():
        sums[name] = sums.get(name, 0.0) + value
    if len(losses):
        sums["ratio_max"] = max(sums["ratio_max"], float(ratio.detach().max()))


def _critic_backward(
    critic: Critic, batch: list[TrainingSequence], *, tokens: Tensor, job: GradientJob
) -> dict[str, float]:
    lengths, masks = [len(item.tokens) for item in batch], [item.sampled for item in batch]
    wanted = torch.nonzero(torch.from_numpy(np.concatenate(masks))).squeeze(-1)
    values = critic.values(tokens, lengths).index_select(0, wanted - 1)
    returns = _masked([item.returns for item in batch], masks)
    losses = value_loss(
        values,
        _masked([item.values for item in batch], masks),
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


def _masked(rows: list[NDArray[np.float32]], masks: list[NDArray[np.bool_]]) -> Tensor:
    """The sampled entries of all rows, float32, [M]."""
    chosen = [row[mask] for row, mask in zip(rows, masks, strict=True)]
    return torch.from_numpy(np.concatenate(chosen).astype(np.float32))


def _tensors(parameters: Parameters) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in parameters.items()}
