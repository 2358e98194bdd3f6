"""Refill: the kept groups of several rollouts of one iteration as one rollout (DAPO's sampling)."""

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from tasks.shards import Kind, read_shard
from tasks.stage import Job, stage

COPIED = ("sampling", "thinking", "engine", "cut_replies")


class RefillJobSettings(BaseModel):
    """How many groups an update learns from at most, and from how many rollouts they come."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_groups: int
    rounds: int


def first_kept(groups: list[pa.Table], *, num_groups: int) -> pa.Table:
    """Kept groups of several rollouts, rollout by rollout, the first `num_groups` of them."""
    kept = pa.concat_tables([table.filter(table["kept"]) for table in groups])
    return kept.slice(0, num_groups)


@stage("refill", version=1)
def refill(job: Job[RefillJobSettings]) -> None:
    """Joins the kept groups of an iteration's rollouts, up to the size of one rollout."""
    rounds = range(job.settings.rounds)
    tables = [read_shard(job.inputs[f"groups_{i}"], kind=Kind.GROUPS).table for i in rounds]
    shards = [read_shard(job.inputs[f"trajectories_{i}"], kind=Kind.TRAJECTORIES) for i in rounds]
    groups = first_kept(tables, num_groups=job.settings.num_groups)
    names = set(groups["group"].to_pylist())
    rows = pa.concat_tables(
        [
            shard.table.filter(
                pa.array([name in names for name in shard.table["group"].to_pylist()])
            )
            for shard in shards
        ]
    )
    facts = {name: shards[0].metadata[name] for name in COPIED}
    asked = len(set(rows["episode"].to_pylist()))
    job.write_shard("trajectories", rows, kind=Kind.TRAJECTORIES, asked=asked, **facts)
    job.write_shard("groups", groups, kind=Kind.GROUPS)
    seen = sum(table.num_rows for table in tables)
    job.metrics = {
        "refill/rounds": float(len(tables)),
        "refill/kept": float(groups.num_rows),
        "refill/kept_share": groups.num_rows / max(seen, 1),
    }
