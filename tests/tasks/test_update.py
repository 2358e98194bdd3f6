"""The update stage on files: gates first, then the same next policy from any number of workers."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from models.engines.base import Request
from models.engines.torch_engine import TorchEngine
from models.folder import weights_digest
from models.nano import build_nano
from models.policy import save_policy
from models.settings import NanoSettings, OptimiserSettings, Sampling
from tasks.errors import GateError
from tasks.lanes import Lanes
from tasks.policy import policy_version
from tasks.shards import Kind, ragged, write_shard
from tasks.stage import Job
from tasks.trajectories import Trajectory, trajectory_table
from tasks.update import UpdateJobSettings, UpdateSettings, update

OPTIMISER = OptimiserSettings(learning_rate=1e-3, ramp_updates=0, mini_batches=2)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = NanoSettings(width=16, heads=2, head_dim=8, feed_forward=16, vocabulary=300)
    folder = tmp_path_factory.mktemp("policy") / "nano"
    texts = [f"at {number},3 go Left || Down" for number in range(20)]
    save_policy(build_nano(texts, settings=settings, seed=0), folder)
    return folder


@pytest.fixture
def rows(trajectory, policy: Path) -> list[Trajectory]:
    """Six trajectories of different lengths, stamped with the policy's weights."""
    digest = weights_digest(policy)
    return [
        dataclasses.replace(
            trajectory(member=size, turns=((3, 2), (2, size))), weight_digest=digest
        )
        for size in range(1, 7)
    ]


def _advantages(rows: list[Trajectory]) -> pa.Table:
    table = trajectory_table(rows)
    rng = np.random.default_rng(0)
    numbers = [
        np.where(row.sequences[0].sampled, rng.normal(), 0).astype(np.float32) for row in rows
    ]
    columns = dict.fromkeys(("advantages", "returns", "values"), ragged(numbers, pa.float32()))
    return pa.table(
        {**{name: table[name] for name in ("episode", "sequence", "group", "weight")}, **columns}
    )


def _run(
    folder: Path,
    rows: list[Trajectory],
    *,
    policy: Path,
    workers: int = 1,
    with_critic: bool = False,
    iteration: int = 0,
    advantages: pa.Table | None = None,
) -> Job[UpdateJobSettings]:
    folder.mkdir()
    sampling = Sampling()
    facts = {"sampling": sampling.model_dump(mode="json"), "asked": len(rows)}
    paths = {name: folder / f"{name}.parquet" for name in ("trajectories", "advantages")}
    table = trajectory_table(rows)
    write_shard(paths["trajectories"], table, kind=Kind.TRAJECTORIES, metadata=facts)
    advantages = _advantages(rows) if advantages is None else advantages
    write_shard(paths["advantages"], advantages, kind=Kind.ADVANTAGES, metadata={})
    with Lanes(workers=workers) as lanes:
        job = Job(
            settings=UpdateJobSettings(
                update=UpdateSettings(optimiser=OPTIMISER),
                sampling=sampling,
                with_critic=with_critic,
                iteration=iteration,
                lanes=2,
            ),
            seed=0,
            inputs={**paths, "policy": policy},
            digests={},
            folder=folder,
            lanes=lanes,
            description={},
        )
        update.fn(job)
    return job


def _bytes(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("with_critic", [False, True])
def test_I7_one_and_two_workers_write_the_same_policy(rows, policy, tmp_path, with_critic) -> None:
    one, two = (
        _run(tmp_path / str(n), rows, policy=policy, workers=n, with_critic=with_critic)
        for n in (1, 2)
    )
    assert _bytes(one.outputs["policy"]) == _bytes(two.outputs["policy"])
    assert one.metrics == two.metrics
    assert one.metrics["update/steps"] == 2
    assert weights_digest(one.outputs["policy"]) != weights_digest(policy)
    assert ("critic/model.safetensors" in _bytes(one.outputs["policy"])) == with_critic


def test_each_update_raises_the_version_and_shuffles_anew(rows, policy, tmp_path) -> None:
    first = _run(tmp_path / "first", rows, policy=policy)
    assert (policy_version(policy), policy_version(first.outputs["policy"])) == (0, 1)
    other = _run(tmp_path / "other", rows, policy=policy, iteration=1)
    assert weights_digest(first.outputs["policy"]) != weights_digest(other.outputs["policy"])


def test_A16_an_update_from_nothing_keeps_the_weights_and_counts_itself(
    rows, policy, tmp_path
) -> None:
    job = _run(tmp_path / "empty", rows, policy=policy, advantages=_advantages(rows).slice(0, 0))
    assert job.metrics["update/skipped_empty"] == 1
    assert weights_digest(job.outputs["policy"]) == weights_digest(policy)
    assert policy_version(job.outputs["policy"]) == 1


def test_L9_stale_trajectories_stop_the_update_before_anything_is_written(
    rows, policy, tmp_path
) -> None:
    stale = [*rows[:-1], dataclasses.replace(rows[-1], weight_digest="cd" * 32)]
    with pytest.raises(GateError, match="I3: sampled by weights cdcd"):
        _run(tmp_path / "stale", stale, policy=policy)
    assert not (tmp_path / "stale" / "policy").exists()


def test_A9_an_advantage_off_the_sampled_tokens_stops_the_update(rows, policy, tmp_path) -> None:
    table = _advantages(rows)
    everywhere = [np.ones(len(row.sequences[0].tokens), dtype=np.float32) for row in rows]
    index = table.schema.get_field_index("advantages")
    table = table.set_column(index, "advantages", ragged(everywhere, pa.float32()))
    with pytest.raises(GateError, match="I2"):
        _run(tmp_path / "spread", rows, policy=policy, advantages=table)


def test_L10_the_sampler_gives_a_canary_prompt_other_log_probs_after_the_update(
    rows, policy, tmp_path
) -> None:
    job = _run(tmp_path / "next", rows, policy=policy)
    engine = TorchEngine()
    found = []
    for folder in (policy, job.outputs["policy"], policy):
        engine.load(folder, digest=weights_digest(folder))
        canary = Request(
            key="canary", tokens=np.arange(8, dtype=np.int32), group="g", max_new_tokens=4
        )
        (reply,) = engine.generate([canary], sampling=Sampling(), seed=0)
        engine.release(["canary"])
        found.append(reply.logprobs.tobytes())
    assert found[0] == found[2]
    assert found[0] != found[1]
