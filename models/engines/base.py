"""The engine protocol: token ids in, token ids and log-probs out, weights by digest.

An engine knows no text. Every engine (in process, vLLM, remote) is used through this alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.settings import Sampling


class StopReason(StrEnum):
    """Why a reply ended."""

    STOP_TOKEN = "stop_token"  # noqa: S105 - not a password
    """The policy sampled the stop token, which is the reply's last token and in the loss (T11)."""
    LENGTH = "length"
    """The limit of new tokens was reached; no stop token was sampled."""


@dataclass(frozen=True)
class Request:
    """One reply to sample.

    Attributes:
        key: Id of the sequence, the same in all its turns; names its noise and its cache.
        tokens: The whole prompt so far, int32, [T].
        group: Sequences of a group share the computation of an equal first prompt.
        max_new_tokens: Limit of the reply.
    """

    key: str
    tokens: NDArray[np.int32]
    group: str
    max_new_tokens: int


@dataclass(frozen=True)
class Completion:
    """One sampled reply.

    Attributes:
        key: Id of the sequence.
        tokens: The sampled ids, with the stop token if it was sampled, int32, [n].
        logprobs: Log-probs of the sampling distribution, float32, [n].
        keep_mass: Mass that top-k and top-p kept at each token, float32, [n]; 1 without them.
        stop_reason: Why it ended.
    """

    key: str
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    keep_mass: NDArray[np.float32]
    stop_reason: StopReason


class Engine(Protocol):
    """What samples replies."""

    @property
    def weight_digest(self) -> str:
        """Digest of the loaded weights; empty before the first load."""

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and reply together."""

    def load(self, folder: Path, *, digest: str) -> None:
        """Loads the policy of a folder and forgets every cache.

        Args:
            folder: A policy folder.
            digest: Digest of its weights, which the engine checks against the bytes it loads.
        """

    def generate(
        self, requests: Sequence[Request], *, sampling: Sampling, seed: int
    ) -> list[Completion]:
        """Samples replies, in the order of the requests."""

    def release(self, keys: Iterable[str]) -> None:
        """Forgets the caches of sequences."""
