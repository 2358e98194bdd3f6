"""Arms of a sweep in processes and on Ray, their retries, and what stopping them leaves."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import task
from prefect.states import Completed, Failed

import flows.arms
from flows.arms import ArmRun, Place, is_passing, parse_place, run_arms
from flows.defaults import ROOT
from flows.errors import ClusterError, ExperimentError
from flows.experiment import Scale
from flows.operation import OperationSettings
from flows.processes import processes_of
from flows.sweep import load_sweep
from tasks.errors import GateError, LaneLostError

QUICK = OperationSettings(stage_timeout_s=600, retries=2, retry_after_s=0.01)


def arm_runs(store: Path, *, workers: int = 1, **changes: Any) -> list[ArmRun]:
    return [
        ArmRun(
            sweep="smoke",
            arm=arm.name,
            seed=seed,
            overrides={**arm.overrides, "seed": seed, **changes},
            scale=Scale.NANO,
            store=str(store),
            workers=workers,
        )
        for seed in range(2)
        for arm in load_sweep("smoke").arms
    ]


def results(runs: list[ArmRun], **where: Any) -> dict[str, str]:
    """By title, the digest of each run's policy, or why it failed."""
    found = {}
    for run, state in run_arms(runs, operation=QUICK, **{"parallel": 2, **where}):
        done = state.is_completed()
        found[run.title] = state.result()["policy_digest"] if done else str(state.message)
    return found


@pytest.fixture(scope="module")
def in_turn(server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    del server
    return results(arm_runs(tmp_path_factory.mktemp("here")), place=Place.HERE)


@pytest.mark.server
@pytest.mark.slow
def test_processes_give_the_same_bits_and_make_shared_stages_once(
    in_turn: dict[str, str], tmp_path: Path
) -> None:
    assert results(arm_runs(tmp_path), place=Place.PROCESSES) == in_turn
    records = list((tmp_path / "records").rglob("*.json"))
    labels = [path.read_text().count('"label": "warmstart"') for path in records]
    assert sum(labels) == 1


@pytest.mark.server
@pytest.mark.slow
def test_a_ray_cluster_gives_the_same_bits(in_turn: dict[str, str], tmp_path: Path) -> None:
    assert results(arm_runs(tmp_path), place=Place.RAY) == in_turn


@pytest.mark.server
@pytest.mark.slow
def test_P9_a_cluster_that_cannot_hold_an_arm_is_refused_within_ten_seconds(
    server: str, tmp_path: Path
) -> None:
    del server
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        address = ray.get_runtime_context().gcs_address
        runs = arm_runs(tmp_path, workers=64)
        started = time.monotonic()
        with pytest.raises(ClusterError, match="asks for 64 CPUs, and no node .* its nodes have 1"):
            list(run_arms(runs, place=Place.RAY, parallel=1, operation=QUICK, ray_address=address))
        assert time.monotonic() - started < 10
    finally:
        ray.shutdown()


@pytest.mark.server
@pytest.mark.slow
def test_a_failed_arm_in_a_process_stops_none_and_says_why(server: str, tmp_path: Path) -> None:
    del server
    good, bad = arm_runs(tmp_path)[:2]
    bad = bad.model_copy(update={"overrides": {**bad.overrides, "diagnose.max_gap": 1e-12}})
    bad = bad.model_copy(update={"overrides": {**bad.overrides, "train.iterations": 1}})
    found = results([bad, good], place=Place.PROCESSES)
    assert "sampler and trainer disagree" in found[bad.title]
    assert len(found[good.title]) == 64


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError("no"), True),
        (httpx.ReadTimeout("slow"), True),
        (LaneLostError("a worker died"), True),
        (GateError("not what was sampled"), False),
        (ValueError("a bug"), False),
        (OSError(28, "no room"), False),
    ],
)
def test_only_failures_that_may_pass_are_tried_again(error: Exception, expected: bool) -> None:
    state = Failed(data=error)
    assert is_passing(None, None, state) is expected  # type: ignore[arg-type]
    assert is_passing(None, None, Completed(data=1)) is False  # type: ignore[arg-type]


@pytest.mark.server
@pytest.mark.parametrize(
    ("failures", "error", "tries"),
    [
        (1, ConnectionError("the server restarts"), 2),
        (9, ConnectionError("the server is gone"), 3),
        (9, GateError("bad data"), 1),
    ],
)
def test_an_arm_is_tried_again_as_often_as_asked(
    failures: int,
    error: Exception,
    tries: int,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del server
    calls = []

    @task(name="arm", persist_result=False)
    def arm(run: ArmRun) -> dict[str, Any]:
        calls.append(run.title)
        if len(calls) <= failures:
            raise error
        return {"policy_digest": "done"}

    monkeypatch.setattr(flows.arms, "arm", arm)
    found = results(arm_runs(tmp_path)[:1], place=Place.HERE)
    assert len(calls) == tries
    assert (list(found.values()) == ["done"]) == (tries == 2)


@pytest.mark.server
@pytest.mark.slow
def test_ending_a_sweep_ends_its_arms_within_ten_seconds_and_leaves_the_store_whole(
    home: dict[str, str], tmp_path: Path
) -> None:
    program = "from flows.cli import main; main()"
    command = [sys.executable, "-c", program, "sweep", "smoke", "--place", "processes"]
    process = subprocess.Popen(command, cwd=ROOT, env=home, start_new_session=True)
    scratch = tmp_path / ".starpo" / "store" / "tmp"
    deadline = time.monotonic() + 120
    while not (scratch.exists() and any(scratch.iterdir())):  # an arm is at work
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    process.wait(30)
    while processes_of(tmp_path) and time.monotonic() - started < 30:
        time.sleep(0.05)
    assert time.monotonic() - started < 10
    assert processes_of(tmp_path) == []
    done = subprocess.run(command, cwd=ROOT, env=home, check=False)
    assert done.returncode == 0
    assert not any(scratch.iterdir())


def test_an_unknown_place_is_refused() -> None:
    assert parse_place("ray") is Place.RAY
    with pytest.raises(ExperimentError, match="known are here, processes, ray"):
        parse_place("cloud")
