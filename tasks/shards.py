"""The shard contract: Parquet tables with a fixed schema, provenance in their own metadata.

A trajectory shard has one row per training sequence. Lists per token have equal lengths:
`tokens[t]` was produced by the policy iff `sampled[t]` iff `logprobs[t]` is not null (I2);
`keep_mass[t]` is the probability that top-p and top-k kept there, 1 without them (L3).
Lists per turn have one entry per turn of the sequence; what is said of the episode (return,
success, …) is repeated in each of its rows. Shards are written by pyarrow and read by polars or
pyarrow.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.errors import ShardError

SCHEMA_VERSION = 2
ROW_GROUP_ROWS = 1024
METADATA_KEY = b"starpo"


class Kind(StrEnum):
    """What a shard holds."""

    TRAJECTORIES = "trajectories"
    """One row per training sequence, from `rollout` and `evaluate`."""
    GROUPS = "groups"
    """One row per group with its score and whether it was kept, from `filter`."""
    ADVANTAGES = "advantages"
    """One row per training sequence that the update learns from, from `advantage`."""
    LOG_PROBS = "log_probs"
    """One row per compared sequence: sampler and trainer on its sampled tokens, from `diagnose`."""


def _field(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def _list(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    return pa.large_list(pa.field("element", kind, nullable=nullable))


SCHEMAS: Mapping[Kind, pa.Schema] = {
    Kind.TRAJECTORIES: pa.schema(
        [
            _field("episode", pa.string()),
            _field("group", pa.string()),
            _field("member", pa.int16()),
            _field("sequence", pa.int16()),
            _field("first_turn", pa.int16()),
            _field("weight", pa.float32()),
            _field("iteration", pa.int32()),
            _field("tag", pa.string()),
            _field("split", pa.string()),
            _field("env_seed", pa.int64()),
            _field("noise_seed", pa.int64()),
            _field("level", pa.string()),
            _field("stratum", pa.string()),
            _field("policy_version", pa.int32()),
            _field("weight_digest", pa.string()),
            # per token
            _field("tokens", _list(pa.int32())),
            _field("sampled", _list(pa.bool_())),
            _field("logprobs", _list(pa.float32(), nullable=True)),
            _field("keep_mass", _list(pa.float32(), nullable=True)),
            _field("turn", _list(pa.int16())),
            # per turn
            _field("observations", _list(pa.string())),
            _field("prompts", _list(pa.string())),
            _field("replies", _list(pa.string())),
            _field("actions", _list(_list(pa.string()))),
            _field("valid", _list(pa.bool_())),
            _field("rewards", _list(pa.float32())),
            _field("penalties", _list(pa.float32())),
            _field("stop_reasons", _list(pa.string())),
            # per episode
            _field("return", pa.float32()),
            _field("penalty", pa.float32()),
            _field("success", pa.bool_()),
            _field("terminated", pa.bool_()),
            _field("truncated", pa.bool_()),
            _field("status", pa.string()),
            _field("error", pa.string()),
            _field("metrics", pa.map_(pa.string(), pa.float64())),
        ]
    ),
    Kind.GROUPS: pa.schema(
        [
            _field("group", pa.string()),
            _field("score", pa.float64()),
            _field("num_members", pa.int16()),
            _field("num_dropped", pa.int16()),
            _field("return_mean", pa.float64()),
            _field("return_std", pa.float64()),
            _field("kept", pa.bool_()),
        ]
    ),
    Kind.ADVANTAGES: pa.schema(
        [
            _field("episode", pa.string()),
            _field("sequence", pa.int16()),
            _field("group", pa.string()),
            _field("weight", pa.float32()),
            _field("advantages", _list(pa.float32())),
            _field("returns", _list(pa.float32())),
            _field("values", _list(pa.float32())),
        ]
    ),
    Kind.LOG_PROBS: pa.schema(
        [
            _field("episode", pa.string()),
            _field("sequence", pa.int16()),
            _field("trainer_logprobs", _list(pa.float32())),
            _field("sampler_logprobs", _list(pa.float32())),
        ]
    ),
}


@dataclass(frozen=True)
class Shard:
    """A verified table and the metadata that its file carries."""

    table: pa.Table
    metadata: Mapping[str, Any]


def write_shard(path: Path, table: pa.Table, *, kind: Kind, metadata: Mapping[str, Any]) -> None:
    """Writes a shard; the caller's workspace makes it atomic and durable.

    Raises:
        ShardError: The table does not have exactly the columns and types of its kind.
    """
    schema = SCHEMAS[kind]
    try:
        table = table.select(schema.names).cast(schema)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise ShardError(f"this table is no shard of kind `{kind}`: {error}") from error
    facts = {"schema_version": SCHEMA_VERSION, "kind": kind.value, **metadata}
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(facts, sort_keys=True)})
    pq.write_table(
        table, path, compression="zstd", compression_level=6, row_group_size=ROW_GROUP_ROWS
    )


def read_shard(path: Path, *, kind: Kind) -> Shard:
    """Reads a shard and refuses anything else by name.

    Raises:
        ShardError: Not Parquet, another kind, another schema version, other columns.
    """
    metadata = read_metadata(path)
    if metadata["kind"] != kind:
        raise ShardError(f"`{path}` holds {metadata['kind']}, not {kind}")
    table = _upgraded(pq.read_table(path), metadata)
    expected = SCHEMAS[kind]
    if not table.schema.remove_metadata().equals(expected):
        names = sorted(set(table.schema.names) ^ set(expected.names)) or "other types"
        raise ShardError(f"`{path}` is no shard of kind `{kind}`: differs in {names}")
    return Shard(table=table, metadata=metadata)


def _upgraded(table: pa.Table, metadata: Mapping[str, Any]) -> pa.Table:
    """A table of an older schema version as one of the present version (P4).

    Version 1 had whole episodes only, and told the state of a turn in its prompt alone.
    """
    if metadata["schema_version"] == 1 and metadata["kind"] == Kind.TRAJECTORIES:
        first_turn = pa.array([0] * table.num_rows, type=pa.int16())
        schema = SCHEMAS[Kind.TRAJECTORIES]
        table = table.append_column("first_turn", first_turn)
        table = table.append_column("observations", table["prompts"]).select(schema.names)
        table = table.cast(schema)
    return table


def read_metadata(path: Path) -> dict[str, Any]:
    """The provenance that a shard carries.

    Raises:
        ShardError: The file is not Parquet, not ours, or of another schema version.
    """
    try:
        stored = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise ShardError(
            f"`{path}` is not a whole Parquet file: {error}\n"
            "hint: it was cut or is something else; run the stage that makes it again"
        ) from error
    if METADATA_KEY not in stored:
        raise ShardError(f"`{path}` is a Parquet file but not a shard of starpo")
    metadata: dict[str, Any] = json.loads(stored[METADATA_KEY])
    if not 1 <= metadata["schema_version"] <= SCHEMA_VERSION:
        raise ShardError(
            f"`{path}` has schema version {metadata['schema_version']}, "
            f"this program reads versions 1 to {SCHEMA_VERSION}\n"
            "hint: use the version of starpo that wrote it (see `packages` in its metadata)"
        )
    return metadata


def ragged(rows: Sequence[NDArray[Any]], kind: pa.DataType, *, nullable: bool = False) -> pa.Array:
    """Rows of unequal lengths as one list column; NaN becomes null when `nullable`.

    Args:
        rows: One array per row, 1-D.
        kind: Element type.
        nullable: Whether NaN elements are stored as null.
    """
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    flat = np.concatenate(rows) if rows else np.empty(0)
    mask = np.isnan(flat) if nullable else None
    values = pa.array(flat, type=kind, mask=mask)
    return pa.LargeListArray.from_arrays(
        pa.array(offsets, type=pa.int64()), values, type=_list(kind, nullable=nullable)
    )


def rows_of(table: pa.Table, name: str) -> list[NDArray[Any]]:
    """The rows of a list column as numpy arrays; null elements become NaN."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # an empty table has no chunk
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy(zero_copy_only=False)
    return [values[start:stop] for start, stop in pairwise(offsets)]


def full_log_probs(trajectories: pa.Table) -> list[NDArray[np.float32]]:
    """Log-probs under the whole softmax at the sampling temperature; NaN where not sampled.

    Top-p and top-k renormalise what they keep in the sampler only; the trainer does not. The stored
    keep mass takes that back (L3).

    Args:
        trajectories: A trajectory shard.

    Returns:
        One array per row, [T].
    """
    columns = (rows_of(trajectories, name) for name in ("logprobs", "keep_mass"))
    return [
        (logprobs + np.log(keep_mass)).astype(np.float32)
        for logprobs, keep_mass in zip(*columns, strict=True)
    ]
