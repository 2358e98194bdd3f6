"""Log-probs of a shard's sampled tokens under a policy, by the trainer's forward pass, in lanes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.lane_work import deal, undeal
from tasks.lanes import Lanes


@dataclass(frozen=True)
class LogProbPayload:
    """Sequences whose log-probs one lane recomputes."""

    policy: Path
    temperature: float
    tokens: list[NDArray[np.int32]]
    sampled: list[NDArray[np.bool_]]


def log_prob_lane(
    payload: LogProbPayload,
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Log-probs and entropies of each sequence's sampled tokens, by the trainer's pass."""
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
    ends = np.cumsum([int(mask.sum()) for mask in payload.sampled])[:-1]
    return np.split(log_probs.numpy(), ends), np.split(entropies.numpy(), ends)


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
    payloads = [
        LogProbPayload(policy, temperature, *lane)
        for lane in zip(deal(tokens, num_lanes), deal(sampled, num_lanes), strict=True)
    ]
    per_lane = lanes.map(log_prob_lane, payloads)
    return undeal([found[0] for found in per_lane]), undeal([found[1] for found in per_lane])
