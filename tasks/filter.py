"""Filter: scores the groups of a rollout and keeps those that teach most (StarPO-S, RAGEN-2)."""

import numpy as np
import pyarrow as pa

from tasks.filter_rules import FilterSettings, group_scores, keep_groups
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
            "return_mean": [_mean(returns[members[group]]) for group in groups],
            "return_std": [_std(returns[members[group]]) for group in groups],
            "kept": [group in kept for group in groups],
        }
    )
