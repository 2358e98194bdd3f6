"""Gates: the invariants I1-I6 of the learning data, checked on the shards before every update.

A violation raises `GateError`, which stops the flow; the shard stays in the store as evidence.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import GateError
from tasks.shards import Shard, rows_of

STATUSES = ("finished", "truncated", "errored")


def check_trajectories(shard: Shard, *, weight_digest: str, sampling: Mapping[str, Any]) -> None:
    """Checks a trajectory shard against the policy and the distribution that the update assumes.

    Args:
        shard: The trajectories.
        weight_digest: Digest of the policy folder that the update starts from.
        sampling: Temperature, top-p and top-k that the update assumes.

    Raises:
        GateError: Naming the invariant, the episode and the fact.
    """
    table = shard.table
    if shard.metadata["sampling"] != dict(sampling):
        raise GateError(
            f"I3: log-probs are of the distribution {shard.metadata['sampling']}, "
            f"the update assumes {dict(sampling)}"
        )
    for found in pc.unique(table["weight_digest"]).to_pylist():
        if found != weight_digest:
            raise GateError(
                f"I3: sampled by weights {found[:12]}…, "
                f"the update starts from {weight_digest[:12]}…"
            )
    _check_tokens(table)
    _check_identity(table, asked=shard.metadata["asked"])


def _check_tokens(table: pa.Table) -> None:
    names = ("tokens", "sampled", "logprobs", "turn", "keep_mass")
    columns = [rows_of(table, name) for name in names]
    prefixes = rows_of(table, "valid")
    for episode, turns, tokens, sampled, logprobs, turn, keep_mass in zip(
        table["episode"].to_pylist(), prefixes, *columns, strict=True
    ):
        if len({len(row) for row in (tokens, sampled, logprobs, turn, keep_mass)}) > 1:
            raise GateError(f"I2: lists of unequal lengths in episode `{episode}`")
        wrong = np.flatnonzero(sampled != np.isfinite(logprobs.astype(np.float32)))
        if wrong.size:
            raise GateError(
                f"I2: token {wrong[0]} of episode `{episode}` is sampled without a log-prob, "
                "or has a log-prob without being sampled"
            )
        if np.any(sampled != (turn >= 0)):
            raise GateError(f"I2: turn ids of episode `{episode}` do not match its sampled tokens")
        if np.any(logprobs[sampled] > 1e-6):
            raise GateError(f"I3: a log-prob above 0 in episode `{episode}`")
        if not np.all((keep_mass[sampled] > 0) & (keep_mass[sampled] <= 1 + 1e-6)):
            raise GateError(f"I3: a keep mass of episode `{episode}` is not a probability")
        if len(sampled) and sampled[0]:
            raise GateError(f"I1: the first token of episode `{episode}` cannot be sampled")
        found = np.unique(turn[sampled])
        if len(found) != len(turns) or np.any(found != np.arange(len(turns))):
            raise GateError(
                f"I1: episode `{episode}` has {len(turns)} turns "
                f"but sampled tokens in turns {found.tolist()}"
            )


def _check_identity(table: pa.Table, *, asked: int) -> None:
    episodes = Counter(
        zip(table["episode"].to_pylist(), table["sequence"].to_pylist(), strict=True)
    )
    repeated = [episode for (episode, _), count in episodes.items() if count > 1]
    if repeated:
        raise GateError(f"I5: episode `{repeated[0]}` is in the shard more than once")
    statuses = Counter(table["status"].to_pylist())
    if unknown := set(statuses) - set(STATUSES):
        raise GateError(f"I5: unknown status {sorted(unknown)}; known are {list(STATUSES)}")
    names = set(table["episode"].to_pylist())
    if asked != len(names):
        raise GateError(f"I5: {asked} episodes were asked, {len(names)} came back")
    weights: dict[str, float] = {}
    groups: dict[str, tuple[Any, ...]] = {}
    for row in table.select(
        ["episode", "group", "member", "tag", "env_seed", "iteration", "weight"]
    ).to_pylist():
        weights[row["episode"]] = weights.get(row["episode"], 0.0) + row["weight"]
        identity = (row["tag"], row["env_seed"], row["iteration"])
        if groups.setdefault(row["group"], identity) != identity:
            raise GateError(f"I4: group `{row['group']}` mixes different instances")
    for episode, weight in weights.items():
        if abs(weight - 1) > 1e-5:
            raise GateError(f"I4: episode `{episode}` weighs {weight:.6f}, not 1")


def check_advantages(trajectories: Shard, advantages: Shard) -> None:
    """Checks that advantages belong to these trajectories, token by token.

    Raises:
        GateError: An unknown or repeated row, a wrong length, an advantage off the sampled tokens.
    """
    masks = rows_of(trajectories.table, "sampled")
    mask_of = dict(zip(_keys(trajectories.table), masks, strict=True))
    seen: set[tuple[str, int]] = set()
    for key, row in zip(
        _keys(advantages.table), rows_of(advantages.table, "advantages"), strict=True
    ):
        if key not in mask_of or key in seen:
            raise GateError(f"I5: advantages of sequence {key}, which is unknown or repeated")
        seen.add(key)
        sampled = mask_of[key]
        if len(row) != len(sampled):
            raise GateError(f"I1: {len(row)} advantages for the {len(sampled)} tokens of {key}")
        if not np.all(np.isfinite(row)):
            raise GateError(f"I5: an advantage of {key} is not finite")
        if np.any(row[~sampled] != 0):
            raise GateError(f"I2: an advantage of {key} lies on a token that was not sampled")


def _keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["episode"].to_pylist(), table["sequence"].to_pylist(), strict=True))
