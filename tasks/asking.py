"""Asking stored rollouts again: what another filter or estimator would have done, without a model.

Nothing is sampled and nothing is learned; the shards hold all that these questions need.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from models.estimators import GroupEstimator, group_advantages
from tasks.advantage import kept_rows
from tasks.episodes import Episodes
from tasks.errors import SettingsError
from tasks.estimates import AdvantageSettings, estimate_advantages
from tasks.filter import filter_groups
from tasks.filter_rules import FilterSettings
from tasks.shards import Kind, read_shard, rows_of
from tasks.summary import episode_rows

Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True)
class Asked:
    """One stored rollout, and what the run made of it; None where that is not at hand."""

    trajectories: pa.Table
    groups: pa.Table | None = None
    advantages: pa.Table | None = None


def load_asked(
    trajectories: Path, groups: Path | None = None, advantages: Path | None = None
) -> Asked:
    """Reads the shards of one iteration."""
    return Asked(
        read_shard(trajectories, kind=Kind.TRAJECTORIES).table,
        None if groups is None else read_shard(groups, kind=Kind.GROUPS).table,
        None if advantages is None else read_shard(advantages, kind=Kind.ADVANTAGES).table,
    )


def settings_grid(base: Settings, changes: Sequence[str], *, prefix: str) -> dict[str, Settings]:
    """Variants of settings: `key=value`, where commas separate the values of a grid.

    Args:
        base: What is changed.
        changes: For instance `["strategy=top_p", "value=0.5,0.9"]`; `prefix.` may lead a key.
        prefix: Name of the stage.

    Returns:
        Every combination by its name, e.g. `strategy=top_p value=0.5`.

    Raises:
        SettingsError: No `=`, an unknown key, or a value that is not allowed.
    """
    axes: list[list[tuple[str, Any]]] = []
    for change in changes:
        key, equals, values = change.partition("=")
        key = key.removeprefix(f"{prefix}.")
        if not equals or key not in type(base).model_fields:
            known = ", ".join(type(base).model_fields)
            raise SettingsError(f"`{change}` is no setting of `{prefix}`\nhint: known are {known}")
        axes.append([(key, yaml.safe_load(value)) for value in values.split(",")])
    grid = {}
    for combination in itertools.product(*axes):
        name = " ".join(f"{key}={value}" for key, value in combination) or "as stored"
        try:
            grid[name] = type(base).model_validate({**base.model_dump(), **dict(combination)})
        except ValidationError as error:
            text = "; ".join(item["msg"] for item in error.errors())
            raise SettingsError(f"`{name}`: {text}") from error
    return grid


def ask_filter(asked: Sequence[Asked], settings: FilterSettings) -> dict[str, float]:
    """What a filter would have kept.

    Returns:
        `kept`: groups per iteration; `kept_share`; `empty`: iterations without any;
        `effective_episodes`: (sum |A|)^2 / sum A^2 of the kept episodes' A = return - group mean,
        per iteration; `spread`: standard deviation of A; `agreement`: share of groups that the run
        decided alike, left out where it is not known.
    """
    kept, sizes, agreements, differences = [], [], [], []
    for item in asked:
        groups = filter_groups(item.trajectories, settings=settings)
        flags = groups["kept"].to_numpy(zero_copy_only=False)
        kept.append(int(flags.sum()))
        sizes.append(len(flags))
        if item.groups is not None:
            stored = dict(
                zip(item.groups["group"].to_pylist(), item.groups["kept"].to_pylist(), strict=True)
            )
            agreements += [
                stored.get(name) == flag
                for name, flag in zip(groups["group"].to_pylist(), flags, strict=True)
            ]
        episodes = Episodes(episode_rows(kept_rows(item.trajectories, groups)))
        differences.append(
            group_advantages(episodes.returns, episodes.groups, estimator=GroupEstimator.DR_GRPO)
            if episodes.rows
            else np.zeros(0)
        )
    return {
        "kept": float(np.mean(kept)),
        "kept_share": sum(kept) / max(sum(sizes), 1),
        "empty": float(kept.count(0)),
        "effective_episodes": float(np.mean([_effective(row) for row in differences])),
        "spread": float(np.std(np.concatenate(differences))) if any(kept) else 0.0,
        **({"agreement": float(np.mean(agreements))} if agreements else {}),
    }


def ask_advantage(asked: Sequence[Asked], settings: AdvantageSettings) -> dict[str, float]:
    """What an estimator would have given to the episodes that the run learned from.

    Returns:
        `episodes` per iteration; `effective_episodes`: the same of mean token advantages;
        `mean` and `spread` of the sampled tokens' advantages; `sign_agreement`: share of sampled
        tokens whose sign is that of the stored advantage, left out where it is not known.

    Raises:
        SettingsError: The estimator needs a critic, which no shard has.
    """
    if settings.needs_critic:
        raise SettingsError(
            f"`{settings.estimator}` needs a critic's values, and asking uses no model\n"
            "hint: train with `advantage.estimator` set; its rollouts of iteration 0 are reused"
        )
    numbers, effective, tokens, agreements = [], [], [], []
    for item in asked:
        groups = item.groups
        rows = item.trajectories if groups is None else kept_rows(item.trajectories, groups)
        found = estimate_advantages(rows, settings=settings).advantages
        masks = rows_of(rows, "sampled")
        of_token = [row[mask] for row, mask in zip(found, masks, strict=True)]
        numbers.append(episode_rows(rows).num_rows)
        effective.append(_effective(np.array([row.mean() for row in of_token])))
        tokens += of_token
        if item.advantages is not None:
            agreements += _signs_agree(rows, found, masks, item.advantages)
    flat = np.concatenate(tokens) if tokens else np.zeros(1)
    return {
        "episodes": float(np.mean(numbers)),
        "effective_episodes": float(np.mean(effective)),
        "mean": float(flat.mean()),
        "spread": float(flat.std()),
        **({"sign_agreement": float(np.concatenate(agreements).mean())} if agreements else {}),
    }


def _signs_agree(
    rows: pa.Table,
    found: Sequence[NDArray[np.float64]],
    masks: Sequence[NDArray[np.bool_]],
    stored: pa.Table,
) -> list[NDArray[np.bool_]]:
    by_key = dict(zip(_keys(stored), rows_of(stored, "advantages"), strict=True))
    return [
        np.sign(np.where(np.abs(row[mask]) < 1e-9, 0.0, row[mask])) == np.sign(by_key[key][mask])
        for key, row, mask in zip(_keys(rows), found, masks, strict=True)
        if key in by_key
    ]


def _keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["episode"].to_pylist(), table["sequence"].to_pylist(), strict=True))


def _effective(weights: NDArray[np.float64]) -> float:
    squares = float(np.square(weights).sum())
    return float(np.abs(weights).sum()) ** 2 / squares if squares > 0 else 0.0


def table_of(answers: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Header and lines of a table of answers, in the order given."""
    names = list(next(iter(answers.values())))
    lines = [[name, *(f"{row[key]:.3g}" for key in names)] for name, row in answers.items()]
    return [["settings", *(name.replace("_", " ") for name in names)], *lines]
