import dataclasses
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tasks.shards
from tasks.errors import ShardError
from tasks.shards import Kind, read_metadata, read_shard, rows_of, write_shard
from tasks.trajectories import trajectory_table

DATA = Path(__file__).parent / "data"


@pytest.fixture
def path(tmp_path: Path, trajectory) -> Path:
    path = tmp_path / "a.parquet"
    table = trajectory_table([trajectory(member=member) for member in range(3)])
    write_shard(path, table, kind=Kind.TRAJECTORIES, metadata={"seed": 1})
    return path


def test_T3_ids_come_back_as_they_were_written(trajectory, as_shard) -> None:
    rng = np.random.default_rng(0)
    rows = [trajectory(member=member) for member in range(5)]
    for row in rows:
        ids = rng.integers(0, 2**31 - 1, len(row.sequences[0].tokens)).astype(np.int32)
        row.sequences = [dataclasses.replace(row.sequences[0], tokens=ids)]
    table = as_shard(rows).table
    for row, stored in zip(rows, rows_of(table, "tokens"), strict=True):
        assert np.array_equal(row.sequences[0].tokens, stored)


def test_a_missing_logprob_is_null_on_disk_and_nan_in_memory(path: Path, trajectory) -> None:
    frame = pl.read_parquet(path)
    logprobs = frame["logprobs"].explode()
    sampled = frame["sampled"].explode()
    assert (logprobs.is_null() == ~sampled).all()
    assert not logprobs.is_nan().any()
    row = rows_of(pq.read_table(path), "logprobs")[1]
    assert np.array_equal(row, trajectory(member=1).sequences[0].logprobs, equal_nan=True)


def test_equal_tables_are_equal_bytes(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "b.parquet"
    shard = read_shard(path, kind=Kind.TRAJECTORIES)
    write_shard(again, shard.table, kind=Kind.TRAJECTORIES, metadata={"seed": 1})
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("keep", [0.3, 0.99])
def test_P3_a_cut_shard_is_refused_by_name(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ShardError, match=r"a\.parquet.*not a whole Parquet file"):
        read_shard(path, kind=Kind.TRAJECTORIES)


def test_a_foreign_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ShardError, match="not a shard of starpo"):
        read_shard(path, kind=Kind.GROUPS)


def test_another_kind_is_refused(path: Path) -> None:
    with pytest.raises(ShardError, match="trajectories, not groups"):
        read_shard(path, kind=Kind.GROUPS)


def test_T14_a_mask_of_numbers_is_refused(tmp_path: Path, trajectory) -> None:
    table = trajectory_table([trajectory()])
    index = table.schema.get_field_index("sampled")
    wrong = table.set_column(index, "sampled", pa.array([["yes"]], pa.large_list(pa.string())))
    with pytest.raises(ShardError, match="no shard of kind"):
        write_shard(tmp_path / "x.parquet", wrong, kind=Kind.TRAJECTORIES, metadata={})


def test_P4_another_schema_version_is_refused_with_the_mend(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = shutil.copy(path, tmp_path / "new.parquet")
    monkeypatch.setattr(tasks.shards, "SCHEMA_VERSION", 1)
    with pytest.raises(ShardError, match="schema version 2, this program reads versions 1 to 1"):
        read_metadata(Path(new))


def test_P4_a_shard_of_version_1_is_read() -> None:
    shard = read_shard(DATA / "trajectories_v1.parquet", kind=Kind.TRAJECTORIES)
    assert shard.metadata["schema_version"] == 1
    assert shard.table.num_rows == 4
    assert shard.table["first_turn"].to_pylist() == [0] * 4
    assert shard.table["observations"] == shard.table["prompts"]
