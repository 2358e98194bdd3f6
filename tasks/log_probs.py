"""Log-probs of a shard's sampled tokens under a policy, by the trainer's forward pass, in lanes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.lanes import Lanes


@dataclass(frozen=True)
class LogProbPayload:
    """Sequences whose log-probs one lane recomputes."""

    policy: Path
    temperature: float
    tokens: list[NDArray[np.int32]]
    sampled: list[NDArray[np.bool_]]


def log_prob_lane(payload: LogProbPayload) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Log-probs and entropies of the sampled tokens of all sequences, by the trainer's pass."""
    import torch

    from models.log_probs import packed_log_probs
    from models.policy import load_decoder

    decoder = load_decoder(payload.policy)
    with torch.inference_mode():
        log_probs, entropies = packed_log_probs(
            decoder,
            tokens=torch.from_numpy(np.concatenate(payload.tokens)).long(),
            lengths=[len(row) for row in payload.tokens],
            predict=torch.from_numpy(np.concatenate(payload.sampled)),
            temperature=payload.temperature,
        )
    return log_probs.numpy(), entropies.numpy()


def shard_log_probs(
    policy: Path,
    tokens: list[NDArray[np.int32]],
    sampled: list[NDArray[np.bool_]],
    *,
    temperature: float,
    lanes: Lanes,
    num_lanes: int,
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Log-probs and entropies of the sampled tokens of each row.

    Args:
        policy: Folder of the policy.
        tokens: Ids of each row, [T].
        sampled: Which of them were sampled, [T].
        temperature: That of the sampler.
        lanes: Executes the lanes.
        num_lanes: Parts that the work is split into.

    Returns:
        Two lists with one array per row, [sampled tokens of the row].
    """
    num_lanes = min(num_lanes, len(tokens))
    payloads = [
        LogProbPayload(policy, temperature, tokens[lane::num_lanes], sampled[lane::num_lanes])
        for lane in range(num_lanes)
    ]
    found: tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]] = ([], [])
    for column in found:
        column.extend([np.zeros(0, dtype=np.float32)] * len(tokens))
    for lane, numbers in enumerate(lanes.map(log_prob_lane, payloads)):
        ends = np.cumsum([int(mask.sum()) for mask in payloads[lane].sampled])[:-1]
        for column, flat in zip(found, numbers, strict=True):
            column[lane::num_lanes] = np.split(flat, ends)
    return found
