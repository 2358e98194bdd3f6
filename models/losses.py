"""Losses per token and their reductions, as pure functions on tensors.

A reduction is global over the optimiser step: `Normaliser` is computed once from the whole
mini-batch, so micro-batches, lanes and workers change nothing (A12).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.settings import KLEstimator, Reduction

SMALLEST_SIZE = 1e-9  # keeps a step without any weight finite: its losses are then 0 as well


@dataclass(frozen=True)
class Normaliser:
    """Sizes of a whole optimiser step, for global reductions.

    Attributes:
        num_tokens: Weighted number of tokens in the loss.
        num_sequences: Weighted number of sequences that have such a token.
        num_rows: Weighted number of sequences; a row of weight 0 is padding and counts nowhere.
        longest: Length of the longest sequence, tokens.
    """

    num_tokens: float
    num_sequences: float
    num_rows: float
    longest: int

    @classmethod
    def of(cls, counts: Sequence[int], *, weights: Sequence[float], longest: int) -> "Normaliser":
        """Sizes of a step from those of its sequences.

        Args:
            counts: Tokens in the loss of each sequence, [B].
            weights: Weight of each sequence, [B].
            longest: Length of the longest sequence that weighs something, tokens.
        """
        pairs = list(zip(counts, weights, strict=True))
        return cls(
            num_tokens=max(sum(count * weight for count, weight in pairs), SMALLEST_SIZE),
            num_sequences=max(sum(weight for count, weight in pairs if count), SMALLEST_SIZE),
            num_rows=max(sum(weights), SMALLEST_SIZE),
            longest=longest,
        )


def clipped_policy_loss(
    ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None
) -> Tensor:
    """PPO's clipped loss per token, separate bounds, dual clip (arXiv 1707.06347, 1912.09729).

    Args:
        ratio: Policy over sampler, [M].
        advantage: [M]
        clip_low: Lower bound is 1 - clip_low.
        clip_high: Upper bound is 1 + clip_high.
        dual_clip: For negative advantages the loss is at most -advantage x dual_clip.
    """
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -advantage * dual_clip), loss)


def sequence_ratios(difference: Tensor, counts: Sequence[int]) -> Tensor:
    """GSPO's ratio on each token of its sequence: exp(mean of log policy - log sampler), [M].

    Its value is the sequence's, its gradient each token's own share (arXiv 2507.18071, eq. 14).

    Args:
        difference: Log policy - log sampler, sequence by sequence, [M].
        counts: Tokens of each sequence, [B], summing to M.
    """
    means = torch.stack([part.mean() for part in torch.split(difference.detach(), list(counts))])
    of_token = torch.repeat_interleave(means, torch.tensor(list(counts)))
    return torch.exp(of_token + difference - difference.detach())


def weighted_log_prob_loss(
    log_probs: Tensor, ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """CISPO: -clip(ratio) A log policy per token, the clipped ratio being a constant, [M]."""
    weight = ratio.detach().clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantage * log_probs


def importance_weights(old: Tensor, sampler: Tensor, *, cap: float) -> Tensor:
    """Truncated importance weights min(trainer / sampler, cap) per token, [M].

    Args:
        old: Log-probs by the trainer before the update, [M].
        sampler: Log-probs by the sampler, [M].
        cap: Largest weight.
    """
    return torch.exp(old - sampler).clamp(max=cap)


def kl_estimate(difference: Tensor, *, estimator: KLEstimator) -> Tensor:
    """KL per token from `difference` = log policy - log reference, [M]."""
    if estimator is KLEstimator.K1:
        return difference
    if estimator is KLEstimator.ABS:
        return difference.abs()
    if estimator is KLEstimator.K2:
        return difference.square() / 2
    return torch.exp(-difference) + difference - 1


def value_loss(values: Tensor, old: Tensor, returns: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error per token, clipped around the old values (PPO), [M]."""
    loss = (values - returns).square()
    if clip is not None:
        near = old + (values - old).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return loss / 2


def reduce_losses(
    losses: Tensor,
    counts: Sequence[int],
    weights: Tensor,
    *,
    reduction: Reduction,
    normaliser: Normaliser,
) -> Tensor:
    """The micro-batch's part of the reduced loss; parts of a step add up to the whole.

    Args:
        losses: Losses of the tokens in the loss, sequence by sequence, [M].
        counts: Number of such tokens of each sequence, [B], summing to M.
        weights: Weight of each sequence, [B].
        reduction: Which.
        normaliser: Sizes of the whole optimiser step.
    """
    sizes = torch.tensor(list(counts))
    per_token = torch.repeat_interleave(weights, sizes)
    if reduction is Reduction.TOKEN_MEAN:
        return (losses * per_token).sum() / normaliser.num_tokens
    if reduction is Reduction.SEQ_MEAN_TOKEN_SUM:
        return (losses * per_token).sum() / normaliser.num_sequences
    if reduction is Reduction.SEQ_MEAN_TOKEN_MEAN:
        shares = per_token / torch.repeat_interleave(sizes, sizes)
        return (losses * shares).sum() / normaliser.num_sequences
    return (losses * per_token).sum() / (normaliser.num_rows * normaliser.longest)
