from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.shards import Kind, Shard, read_shard, write_shard
from tasks.trajectories import (
    EpisodeRequest,
    Status,
    TokenSequence,
    Trajectory,
    Turn,
    trajectory_table,
)

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
WEIGHTS = "ab" * 32


def make_trajectory(
    *,
    group: str = "g0",
    member: int = 0,
    turns: tuple[tuple[int, int], ...] = ((3, 2), (2, 3)),
    rewards: tuple[float, ...] = (0.0, 1.0),
    status: Status = Status.FINISHED,
) -> Trajectory:
    """A small trajectory; `turns` gives (prompt tokens, sampled tokens) of each turn."""
    rng = np.random.default_rng(member)
    sampled: list[bool] = []
    turn: list[int] = []
    for index, (prompt, reply) in enumerate(turns):
        sampled += [False] * prompt + [True] * reply
        turn += [-1] * prompt + [index] * reply
    mask = np.array(sampled)
    logprobs = np.where(mask, -rng.random(len(mask)), np.nan).astype(np.float32)
    return Trajectory(
        request=EpisodeRequest(f"{group}/{member}", group, member, 7, 100 + member, 3),
        tag="Bandit",
        split="train",
        policy_version=2,
        weight_digest=WEIGHTS,
        sequences=[
            TokenSequence(
                tokens=rng.integers(0, 300, len(mask)).astype(np.int32),
                sampled=mask,
                logprobs=logprobs,
                keep_mass=np.where(mask, 1.0, np.nan).astype(np.float32),
                turn=np.array(turn, dtype=np.int16),
                first_turn=0,
                num_turns=len(turns),
            )
        ],
        level="level",
        stratum="length 1",
        turns=[Turn("o", "p", "r", ("Up",), True, reward, -0.1, "stop") for reward in rewards],
        status=status,
        success=rewards[-1] > 0,
        terminated=status is Status.FINISHED,
        truncated=status is Status.TRUNCATED,
        error="server gone" if status is Status.ERRORED else "",
        metrics={"solved": 1.0},
    )


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    return make_trajectory


@pytest.fixture
def as_shard(tmp_path: Path) -> Callable[[list[Trajectory]], Shard]:
    """Writes trajectories to a shard and reads it back."""

    def write(trajectories: list[Trajectory]) -> Shard:
        path = tmp_path / "trajectories.parquet"
        table = trajectory_table(trajectories)
        facts = {"sampling": SAMPLING, "asked": len(trajectories)}
        write_shard(path, table, kind=Kind.TRAJECTORIES, metadata=facts)
        return read_shard(path, kind=Kind.TRAJECTORIES)

    return write


@pytest.fixture
def replace_column() -> Callable[[Shard, str, object], Shard]:
    """A shard with one column replaced by other values: a planted fault."""

    def replace(shard: Shard, name: str, values: object) -> Shard:
        index = shard.table.schema.get_field_index(name)
        field = shard.table.schema.field(name)
        column = pa.array(values, type=field.type)
        return Shard(shard.table.set_column(index, field, column), shard.metadata)

    return replace
