"""Filter: scores the groups of a rollout and keeps those that teach most (StarPO-S, RAGEN-2)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filter_rules import FilterSettings, group_scores, keep_groups
from tasks.shards import Kind, read_shard
from tasks.stage import Job, stage
from tasks.summary import group_rows, learning_returns


def filter_groups(trajectories: pa.Table, *, settings: FilterSettings) -> pa.Table:
    """The groups of a trajectory shard with score and decision.

    Members that errored are dropped and counted; a group with fewer than two members left has
    nothing to compare and is never kept (A1, A5).

    Args:
        trajectories: A trajectory shard.
        settings: The filter.

    Returns:
        A table of kind `groups`, one row per group, in order of group id.
    """
    returns = learning_returns(trajectories)
    groups = group_rows(trajectories)
    members = {group: rows[np.isfinite(returns[rows])] for group, rows in groups.items()}
    usable = [group for group, rows in members.items() if len(rows) >= 2]
    scores = group_scores([returns[members[group]] for group in usable], metric=settings.metric)
    kept = {usable[index] for index in keep_groups(scores, settings=settings)}
    score_of = dict(zip(usable, scores, strict=True))
    return pa.table(
        {
            "group": list(groups),
            "score": [float(score_of.get(group, 0.0)) for group in groups],
            "num_members": [len(rows) for rows in groups.values()],
            "num_dropped": [len(groups[group]) - len(members[group]) for group in groups],
            "return_mean": [_finite(np.mean, returns[members[group]]) for group in groups],
            "return_std": [_finite(np.std, returns[members[group]]) for group in groups],
            "kept": [group in kept for group in groups],
        }
    )


def _finite(function: Callable[..., Any], values: NDArray[np.float64]) -> float:
    """The function of the values, 0 for none."""
    return float(function(values)) if len(values) else 0.0


@stage("filter", version=1)
def filter_stage(job: Job[FilterSettings]) -> None:
    """Chooses the groups of a rollout that the update learns from."""
    rollout = read_shard(job.inputs["trajectories"], kind=Kind.TRAJECTORIES)
    groups = filter_groups(rollout.table, settings=job.settings)
    job.write_shard("groups", groups, kind=Kind.GROUPS)
    kept = groups["kept"].to_numpy(zero_copy_only=False)
    spread = groups["return_std"].to_numpy()
    job.metrics = {
        "filter/kept": float(kept.sum()),
        "filter/kept_share": float(kept.mean()),
        "filter/dead_groups": float((spread <= 1e-9).sum()),
        "filter/dropped_episodes": float(groups["num_dropped"].to_numpy().sum()),
    }
