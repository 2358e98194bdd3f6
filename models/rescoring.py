"""Log-probs of training sequences under given weights, computed by the trainer's own forward pass.

Needed where the sampler's log-probs do not serve: for the reference policy of a KL term, and for
old log-probs when a different engine sampled. The temperature is that of the sampler, for the
reference as well: the KL between a policy and itself is then 0 at every temperature (L8).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import DecoderConfig
from models.errors import TrainingDataError
from models.lane_work import Run, deal, undeal
from models.log_probs import packed_log_probs
from models.policy import build_decoder
from models.settings import LossSettings
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
            counts = [int(item.sampled.sum()) for item in batch]
            for item, part in zip(batch, torch.split(log_probs, counts), strict=True):
                row = np.full(len(item.tokens), np.nan, dtype=np.float32)
                row[item.sampled] = part.numpy()
                found[id(item)] = row
    return [found[id(item)] for item in job.sequences]


def with_needed_log_probs(
    sequences: Sequence[TrainingSequence],
    *,
    config: DecoderConfig,
    current: Parameters,
    loss: LossSettings,
    reference: Parameters | None,
    temperature: float,
    micro_tokens: int,
    num_lanes: int,
    run: Run,
) -> list[TrainingSequence]:
    """The sequences with the log-probs that the loss needs beyond the sampler's.

    Args:
        sequences: What is learned from.
        config: Shape of the policy and of the reference.
        current: Weights before the update, by name.
        loss: With `importance_cap`, old log-probs are computed; with `kl_coefficient`, the
            reference's.
        reference: Weights of the reference policy, or None without one.
        temperature: That of the sampling distribution.
        micro_tokens: Most tokens of a forward pass.
        num_lanes: Parts that the work is split into.
        run: Runs a function over the lanes' jobs, in order.

    Raises:
        TrainingDataError: The loss has a KL term and there is no reference.
    """
    rescored = list(sequences)

    def log_probs(parameters: Parameters) -> list[NDArray[np.float32]]:
        jobs = [
            RescoringJob(config, parameters, lane, temperature, micro_tokens)
            for lane in deal(rescored, num_lanes)
        ]
        return undeal(run(rescore, jobs))

    if loss.importance_cap is not None:
        rows = log_probs(current)
        rescored = [
            replace(item, old_logprobs=row) for item, row in zip(rescored, rows, strict=True)
        ]
    if loss.kl_in_loss:
        if reference is None:
            raise TrainingDataError(
                f"`kl_coefficient` is {loss.kl_coefficient}, but there is no reference policy\n"
                "hint: give one, or set `kl_coefficient` to 0"
            )
        rows = log_probs(reference)
        rescored = [
            replace(item, reference_logprobs=row) for item, row in zip(rescored, rows, strict=True)
        ]
    return rescored
