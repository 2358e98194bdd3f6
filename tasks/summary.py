"""Numbers that describe a trajectory shard: success, return, validity, lengths, spread."""

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.shards import rows_of
from tasks.trajectories import Status


def learning_returns(table: pa.Table) -> NDArray[np.float64]:
    """Return plus penalty of each row, NaN where the episode errored; shape [rows]."""
    returns: NDArray[np.float64] = table["return"].to_numpy() + table["penalty"].to_numpy().astype(
        np.float64
    )
    errored = np.array(table["status"].to_pylist()) == Status.ERRORED.value
    return np.where(errored, np.nan, returns)


def episode_rows(table: pa.Table) -> pa.Table:
    """One row per episode, its first training sequence: for what is said of episodes."""
    return table.filter(pc.equal(table["sequence"], 0))


def group_rows(table: pa.Table) -> dict[str, NDArray[np.int64]]:
    """Row indices of each group, by id, groups in order of id."""
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(table["group"].to_pylist()):
        rows[group].append(index)
    return {group: np.array(rows[group], dtype=np.int64) for group in sorted(rows)}


def summarise(table: pa.Table, *, prefix: str) -> dict[str, float]:
    """Metrics of a trajectory shard, named `prefix/name`.

    A number that no episode or group has is left out, never NaN: the return when every episode
    errored, the spread when no group has two members with a return.

    Args:
        table: A trajectory shard of at least one row.
        prefix: Name of the stage.
    """
    episodes = episode_rows(table)
    returns = learning_returns(episodes)
    statuses = Counter(episodes["status"].to_pylist())
    turn_valid = np.concatenate(rows_of(table, "valid"))
    sampled = rows_of(table, "sampled")
    num_turns = len(turn_valid)
    num_actions = sum(sum(map(len, row)) for row in table["actions"].to_pylist())
    stops = Counter(reason for row in table["stop_reasons"].to_pylist() for reason in row)
    known = np.isfinite(returns)
    members = [returns[rows][known[rows]] for rows in group_rows(episodes).values()]
    spreads = [np.std(group, ddof=1) for group in members if len(group) > 1]
    num_episodes = episodes.num_rows
    values = {
        "success": np.mean(episodes["success"].to_numpy(zero_copy_only=False)),
        "penalty": np.mean(episodes["penalty"].to_numpy()),
        "valid_turns": np.mean(turn_valid),
        "reply_tokens": sum(int(row.sum()) for row in sampled) / max(num_turns, 1),
        "turns": num_turns / num_episodes,
        "actions": num_actions / num_episodes,
        "episodes": num_episodes,
        "finished": statuses[Status.FINISHED.value] / num_episodes,
        "truncated": statuses[Status.TRUNCATED.value] / num_episodes,
        "errored": statuses[Status.ERRORED.value],
        "replies_cut": stops["length"] / max(num_turns, 1),
        "sampled_tokens": sum(int(row.sum()) for row in sampled),
        "tokens": sum(len(row) for row in sampled),
    }
    if known.any():
        values["return"] = np.mean(returns[known])
    if spreads:
        values["group_return_std"] = np.mean(spreads)
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}
