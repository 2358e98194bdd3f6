"""Log-probs of training sequences under given weights, computed by the trainer's own forward pass.

Needed where the sampler's log-probs do not serve: for the reference policy of a KL term, and for
old log-probs when a different engine sampled. The temperature is that of the sampler, for the
reference as well: the KL between a policy and itself is then 0 at every temperature (L8).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import DecoderConfig
from models.log_probs import packed_log_probs
from models.policy import build_decoder
from models.training_data import Parameters, TrainingSequence, micro_batches, tensors_of


@dataclass(frozen=True)
class RescoringJob:
    """What a lane needs to compute log-probs.

    Attributes:
        config: Shape of the policy.
        parameters: The weights, by name.
        sequences: The lane's sequences.
        temperature: That of the sampling distribution.
        micro_tokens: Most tokens of a forward pass.
    """

    config: DecoderConfig
    parameters: Parameters
    sequences: list[TrainingSequence]
    temperature: float
    micro_tokens: int


def rescore(job: RescoringJob) -> list[NDArray[np.float32]]:
    """Log-probs of each sequence's sampled tokens, NaN elsewhere; shape [T] each."""
    decoder = build_decoder(job.config, tensors_of(job.parameters))
    found: dict[int, NDArray[np.float32]] = {}
    with torch.inference_mode():
        for batch in micro_batches(job.sequences, limit=job.micro_tokens):
            log_probs, _ = packed_log_probs(
                decoder,
                tokens=torch.from_numpy(np.concatenate([item.tokens for item in batch])).long(),
                lengths=[len(item.tokens) for item in batch],
                predict=torch.from_numpy(np.concatenate([item.sampled for item in batch])),
                temperature=job.temperature,
            )
            parts = log_probs.split([int(item.sampled.sum()) for item in batch])
            for item, part in zip(batch, parts, strict=True):
                row = np.full(len(item.tokens), np.nan, dtype=np.float32)
                row[item.sampled] = part.numpy()
                found[id(item)] = row
    return [found[id(item)] for item in job.sequences]


def rescoring_jobs(
    sequences: Sequence[TrainingSequence],
    parameters: Parameters,
    *,
    config: DecoderConfig,
    temperature: float,
    micro_tokens: int,
    num_lanes: int,
) -> list[RescoringJob]:
    """One job per lane; lane `i` gets every `num_lanes`-th sequence from `i`."""
    return [
        RescoringJob(
            config=config,
            parameters=parameters,
            sequences=list(sequences[lane::num_lanes]),
            temperature=temperature,
            micro_tokens=micro_tokens,
        )
        for lane in range(min(num_lanes, len(sequences)))
    ]


def in_order(
    lanes: Sequence[list[NDArray[np.float32]]], *, num_sequences: int
) -> list[NDArray[np.float32]]:
    """The lanes' results in the order of the sequences that `rescoring_jobs` was given."""
    rows: list[NDArray[np.float32]] = [np.empty(0, dtype=np.float32)] * num_sequences
    for lane, results in enumerate(lanes):
        rows[lane :: len(lanes)] = results
    return rows
