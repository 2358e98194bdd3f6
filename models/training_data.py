"""Training sequences, their micro-batches, and the tensors that a lane makes of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.errors import TrainingDataError

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
        old_logprobs: Log-probs by the trainer before the update; float32, [T], or None.
        reference_logprobs: Log-probs by the reference policy; float32, [T], or None.

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
    old_logprobs: NDArray[np.float32] | None = None
    reference_logprobs: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        lists = (self.sampled, self.logprobs, self.advantages, self.returns, self.values)
        if any(len(item) != len(self.tokens) for item in lists):
            raise TrainingDataError("a training sequence has lists of unequal lengths")
        if np.any(self.sampled != np.isfinite(self.logprobs)):
            raise TrainingDataError("a token is sampled without a log-prob, or the other way round")
        if len(self.sampled) and self.sampled[0]:
            raise TrainingDataError("the first token of a sequence cannot be sampled")

    def needed(self, name: Literal["old_logprobs", "reference_logprobs"]) -> NDArray[np.float32]:
        """Log-probs that the loss needs; shape [T].

        Raises:
            TrainingDataError: They were not computed.
        """
        row = self.old_logprobs if name == "old_logprobs" else self.reference_logprobs
        if row is None:
            raise TrainingDataError(f"the loss needs `{name}`, which were not computed")
        return row


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


def sampled_entries(
    rows: Sequence[NDArray[np.float32]], masks: Sequence[NDArray[np.bool_]]
) -> Tensor:
    """The entries of all rows where a token was sampled, in order; float32, [M]."""
    chosen = [row[mask] for row, mask in zip(rows, masks, strict=True)]
    return torch.from_numpy(np.concatenate(chosen).astype(np.float32))


def tensors_of(parameters: Mapping[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    """The parameters as tensors that share their memory."""
    return {name: torch.from_numpy(value) for name, value in parameters.items()}
