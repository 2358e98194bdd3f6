"""Sampling of tokens: the distribution, and noise from seed, sequence and position alone."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.settings import Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sequence_key(name: str) -> np.uint64:
    """The noise key of a sequence, from its id."""
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))


def uniforms(
    seed: int, keys: NDArray[np.uint64], positions: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) that depend on nothing but the arguments.

    Batch order, batch size and placement therefore change no draw. SplitMix64 (Steele et al. 2014)
    is applied to seed, key and position in turn.

    Args:
        seed: Seed of the rollout.
        keys: Key of each sequence, [B].
        positions: Position of the token to sample in its sequence, [B].

    Returns:
        float64, [B]
    """
    with np.errstate(over="ignore"):
        state = _mix(np.uint64(seed % 2**64) + _GOLDEN)
        state = _mix(state ^ keys)
        state = _mix(state + positions.astype(np.uint64) * _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Draw:
    """One sampled token per row.

    Attributes:
        tokens: int64, [B].
        logprobs: Their log-probs under the sampling distribution, float32, [B].
        keep_mass: Mass that top-k and top-p kept of the tempered softmax, float32, [B]; its
            logarithm plus the log-prob is what a trainer without truncation computes (L3).
    """

    tokens: Tensor
    logprobs: Tensor
    keep_mass: Tensor


def sample(logits: Tensor, draws: Tensor, sampling: Sampling) -> Draw:
    """Samples one token per row by inverting the distribution function.

    Args:
        logits: Scores, float32, [B, V].
        draws: Uniform numbers, float64, [B].
        sampling: The distribution; at temperature 0 it is certain of the likeliest token.
    """
    certain = torch.ones(len(draws))
    if sampling.temperature == 0:
        return Draw(logits.argmax(-1), torch.zeros_like(certain), certain)
    log_p = torch.log_softmax(logits / sampling.temperature, dim=-1)
    log_p, keep_mass = _truncate(log_p, sampling) if sampling.truncates else (log_p, certain)
    mass = log_p.double().exp().cumsum_(-1)
    targets = draws * mass[:, -1]  # the last entry is 1 up to rounding
    tokens = torch.searchsorted(mass, targets[:, None], right=True).squeeze(-1)
    tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    return Draw(tokens, log_p.gather(-1, tokens[:, None]).squeeze(-1), keep_mass)


def _truncate(log_p: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Excludes tokens outside top-k, then outside top-p; renormalised log-probs, mass kept."""
    ordered, order = log_p.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(log_p.shape[-1])
    outside = torch.zeros_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        outside |= ranks >= sampling.top_k
        ordered = torch.log_softmax(ordered.masked_fill(outside, -torch.inf), dim=-1)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    outside |= before >= sampling.top_p
    kept = torch.zeros_like(outside).scatter(-1, order, ~outside)
    log_p = log_p.masked_fill(~kept, -torch.inf)
    log_mass = log_p.logsumexp(-1)
    return log_p - log_mass[:, None], log_mass.exp()


def _mix(state: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)), dtype=np.uint64)
