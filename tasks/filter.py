"""Filter: scores the groups of a rollout and keeps those that teach most (StarPO-S, RAGEN-2)."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filter_rules import FilterSettings, Metric, keep_groups, scores_by_place
from tasks.shards import Kind, read_shard, rows_of
from tasks.stage import Job, stage
from tasks.summary import episode_rows, learning_returns


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
    episodes = episode_rows(trajectories)
    returns = learning_returns(episodes)
    names, places = np.unique(np.array(episodes["group"].to_pylist()), return_inverse=True)
    alive = np.isfinite(returns)
    sizes = np.bincount(places, minlength=len(names))
    alive_sizes = np.bincount(places[alive], minlength=len(names))
    usable = np.flatnonzero(alive_sizes >= 2)
    compared = alive & (alive_sizes >= 2)[places]
    values = _values(trajectories, episodes, returns, metric=settings.metric)
    scores = np.zeros(len(names))
    if usable.size:
        rank = np.zeros(len(names), dtype=np.int64)
        rank[usable] = np.arange(len(usable))
        scores[usable] = scores_by_place(
            values[compared], rank[places[compared]], metric=settings.metric
        )
    kept = np.zeros(len(names), dtype=np.bool_)
    kept[usable[keep_groups(scores[usable], settings=settings)]] = True
    known = np.where(alive, returns, 0.0)
    means = np.bincount(places, weights=known) / np.maximum(alive_sizes, 1)
    squares = np.bincount(places, weights=np.where(alive, known - means[places], 0.0) ** 2)
    return pa.table(
        {
            "group": names.tolist(),
            "score": scores,
            "num_members": sizes,
            "num_dropped": sizes - alive_sizes,
            "return_mean": means,
            "return_std": np.sqrt(squares / np.maximum(alive_sizes, 1)),
            "kept": kept,
        }
    )


def _values(
    trajectories: pa.Table, episodes: pa.Table, returns: NDArray[np.float64], *, metric: Metric
) -> NDArray[np.float64]:
    """What the metric is about, per episode."""
    if metric not in {Metric.ENTROPY, Metric.ENTROPY_VARIANCE, Metric.LENGTH}:
        return returns
    place = {name: index for index, name in enumerate(episodes["episode"].to_pylist())}
    of_row = np.array([place[name] for name in trajectories["episode"].to_pylist()])
    masks = rows_of(trajectories, "sampled")
    num = episodes.num_rows
    counts = [float(mask.sum()) for mask in masks]
    lengths = np.bincount(of_row, weights=counts, minlength=num).astype(np.float64)
    if metric is Metric.LENGTH:
        return lengths
    logprobs = rows_of(trajectories, "logprobs")
    sums = [-float(row[mask].sum()) for row, mask in zip(logprobs, masks, strict=True)]
    total = np.bincount(of_row, weights=sums, minlength=num).astype(np.float64)
    return total / np.maximum(lengths, 1)


def consumption(trajectories: pa.Table, groups: pa.Table) -> dict[str, float]:
    """Which kinds of instances, and how long episodes, the update learns from (L13).

    Args:
        trajectories: The rollout.
        groups: Its groups with the filter's decision.

    Returns:
        `filter/by/KIND/kept_share` of each kind of level, and `filter/length_kept` and
        `filter/length`: sampled tokens of an episode, mean over kept and over all groups.
    """
    kept = dict(zip(groups["group"].to_pylist(), groups["kept"].to_pylist(), strict=True))
    episodes = episode_rows(trajectories)
    names = episodes["group"].to_pylist()
    kinds = dict(zip(names, episodes["stratum"].to_pylist(), strict=True))
    numbers = {}
    for kind in sorted(set(kinds.values()) - {""}):
        flags = [kept[group] for group, found in kinds.items() if found == kind]
        numbers[f"filter/by/{kind}/kept_share"] = sum(flags) / len(flags)
    returns = np.zeros(len(names))
    lengths = _values(trajectories, episodes, returns, metric=Metric.LENGTH)
    numbers["filter/length"] = float(lengths.mean())
    chosen = np.array([kept[name] for name in names], dtype=np.bool_)
    if chosen.any():
        numbers["filter/length_kept"] = float(lengths[chosen].mean())
    return numbers


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
        **consumption(rollout.table, groups),
    }
