"""Diagnose: does the trainer see what the sampler saw, and what do these episodes look like?

Recomputes the log-probs of a rollout with the trainer's forward pass. The gap to the stored ones
must be rounding only; a larger one is a fault of an engine, found before it teaches anything (L5).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import GateError
from tasks.lanes import Lanes
from tasks.shards import Kind, read_shard, rows_of
from tasks.stage import Job, stage


class DiagnoseSettings(BaseModel):
    """What is looked at, and which gap stops the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    episodes: int = Field(default=64, ge=1, description="Episodes whose log-probs are recomputed.")
    max_gap: float = Field(
        default=0.02, gt=0, description="Largest allowed log-prob gap between sampler and trainer."
    )


class DiagnoseJobSettings(BaseModel):
    """What determines a diagnosis besides its inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    diagnose: DiagnoseSettings
    lanes: int


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


@stage("diagnose", version=1)
def diagnose(job: Job[DiagnoseJobSettings]) -> None:
    """Compares sampler and trainer on a rollout, and measures the policy's entropy."""
    from tasks.learning_rows import full_log_probs

    settings = job.settings.diagnose
    shard = read_shard(job.inputs["trajectories"], kind=Kind.TRAJECTORIES)
    sampling = shard.metadata["sampling"]
    rows = shard.table.slice(0, settings.episodes)
    tokens, sampled = (rows_of(rows, name) for name in ("tokens", "sampled"))
    stored = full_log_probs(rows)
    num_lanes = min(job.settings.lanes, len(tokens))
    payloads = [
        LogProbPayload(
            policy=job.inputs["policy"],
            temperature=sampling["temperature"],
            tokens=tokens[lane::num_lanes],
            sampled=sampled[lane::num_lanes],
        )
        for lane in range(num_lanes)
    ]
    gaps, entropies = _compare(payloads, stored, sampled, lanes=job.lanes)
    job.metrics = {
        "diagnose/log_prob_gap_mean": float(gaps.mean()),
        "diagnose/log_prob_gap_max": float(gaps.max()),
        "diagnose/entropy": float(entropies.mean()),
    }
    if gaps.max() > settings.max_gap:
        raise GateError(
            f"sampler and trainer disagree: log-prob gap up to {gaps.max():.4f} on "
            f"`{job.inputs['trajectories']}`, allowed is {settings.max_gap}\n"
            "hint: the engine does not serve the policy that it was given"
        )


def _compare(
    payloads: list[LogProbPayload],
    stored: list[NDArray[np.float32]],
    sampled: list[NDArray[np.bool_]],
    *,
    lanes: Lanes,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Absolute gaps and entropies of all sampled tokens, lane by lane."""
    gaps, entropies = [], []
    num_lanes = len(payloads)
    for lane, (log_probs, entropy) in enumerate(lanes.map(log_prob_lane, payloads)):
        rows = zip(stored[lane::num_lanes], sampled[lane::num_lanes], strict=True)
        gaps.append(np.abs(log_probs - np.concatenate([row[mask] for row, mask in rows])))
        entropies.append(entropy)
    return np.concatenate(gaps), np.concatenate(entropies)
