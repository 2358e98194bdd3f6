"""Diagnose: does the trainer see what the sampler saw, and what do these episodes look like?

Recomputes the log-probs of a rollout with the trainer's forward pass. The gap to the stored ones
must be rounding only; a larger one is a fault of an engine, found before it teaches anything (L5).
"""

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import GateError
from tasks.log_probs import shard_log_probs
from tasks.shards import Kind, full_log_probs, ragged, read_shard, rows_of
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


@stage("diagnose", version=2)
def diagnose(job: Job[DiagnoseJobSettings]) -> None:
    """Compares sampler and trainer on a rollout, and measures the policy's entropy."""
    settings = job.settings.diagnose
    shard = read_shard(job.inputs["trajectories"], kind=Kind.TRAJECTORIES)
    rows = shard.table.slice(0, settings.episodes)
    tokens, sampled = (rows_of(rows, name) for name in ("tokens", "sampled"))
    log_probs, entropies = shard_log_probs(
        job.inputs["policy"],
        tokens,
        sampled,
        temperature=shard.metadata["sampling"]["temperature"],
        lanes=job.lanes,
        num_lanes=job.settings.lanes,
    )
    stored = [row[mask] for row, mask in zip(full_log_probs(rows), sampled, strict=True)]
    gaps = np.abs(np.concatenate(log_probs) - np.concatenate(stored))
    names = ("episode", "sequence")
    columns = {
        "trainer_logprobs": ragged(log_probs, pa.float32()),
        "sampler_logprobs": ragged(stored, pa.float32()),
    }
    table = pa.table({**{name: rows[name] for name in names}, **columns})
    job.write_shard("log_probs", table, kind=Kind.LOG_PROBS)
    job.metrics = {
        "diagnose/log_prob_gap_mean": float(gaps.mean()),
        "diagnose/log_prob_gap_max": float(gaps.max()),
        "diagnose/entropy": float(np.concatenate(entropies).mean()),
    }
    if gaps.max() > settings.max_gap:
        raise GateError(
            f"sampler and trainer disagree: log-prob gap up to {gaps.max():.4f} on "
            f"`{job.inputs['trajectories']}`, allowed is {settings.max_gap}\n"
            "hint: the engine does not serve the policy that it was given"
        )
