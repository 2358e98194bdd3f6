import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from tasks.tracking import RunState, Tracker, close_abandoned, open_client, tracked_runs


def _open(root: Path, key: str = "k1") -> Tracker:
    return Tracker.open(
        root, experiment="Bandit", run_key=key, name="bandit seed 0", parameters={"seed": 0}
    )


def _steps(root: Path, run_id: str) -> list[int]:
    return [item.step for item in open_client(root).get_metric_history(run_id, "update/steps")]


def test_a_resumed_run_continues_without_repeated_steps(tmp_path: Path) -> None:
    with _open(tmp_path) as first:
        for iteration in range(3):
            first.log(iteration, {"update/steps": 2.0})
        first.finish("stopped", "test")
    with _open(tmp_path) as second:
        for iteration in range(5):
            second.log(iteration, {"update/steps": 2.0})
        second.finish("finished")
    assert first.run_id == second.run_id
    assert _steps(tmp_path, first.run_id) == [0, 1, 2, 3, 4]
    assert [run.state for run in tracked_runs(tmp_path)] == ["FINISHED"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("evaluate/pass@8", "evaluate/pass_at_8"),
        ("mean/FrozenLake ppo 75 %", "mean/FrozenLake ppo 75 percent"),
        ("mean/k ≤ 3, top(p)", "mean/k _ 3_ top_p_"),
    ],
)
def test_names_that_mlflow_refuses_are_written_as_it_allows(
    tmp_path: Path, name: str, kept: str
) -> None:
    with _open(tmp_path) as tracker:
        tracker.log(0, {name: 0.5})
        tracker.finish("finished")
    (point,) = open_client(tmp_path).get_metric_history(tracker.run_id, kept)
    assert point.value == 0.5


def test_another_experiment_is_another_run(tmp_path: Path) -> None:
    with _open(tmp_path) as first:
        first.finish("finished")
    with _open(tmp_path, "k2") as second:
        second.finish("finished")
    assert first.run_id != second.run_id


def test_a_failure_is_kept_with_what_was_logged_before(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), _open(tmp_path) as tracker:
        tracker.log(0, {"update/steps": 1.0})
        raise ValueError("broken")
    assert tracked_runs(tmp_path)[0].state == "FAILED"
    assert _steps(tmp_path, tracker.run_id) == [0]


def test_an_interrupted_run_is_killed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), _open(tmp_path):
        raise KeyboardInterrupt
    assert tracked_runs(tmp_path)[0].state == "KILLED"


def test_C6_a_run_left_running_by_a_killed_process_is_closed_at_the_next_start(
    tmp_path: Path,
) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tasks.tracking import Tracker
root = Path({str(tmp_path)!r})
Tracker.open(root, experiment="Bandit", run_key="dead", name="dead", parameters={{}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert tracked_runs(tmp_path)[0].state == "RUNNING"
    with _open(tmp_path) as tracker:
        tracker.finish("finished")
    assert {run.name: run.state for run in tracked_runs(tmp_path)} == {
        "dead": "KILLED",
        "bandit seed 0": "FINISHED",
    }


def test_C6_a_run_that_only_just_began_is_not_closed_by_another_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = _open(tmp_path, "dead")
    dead._end(RunState.KILLED)
    client = open_client(tmp_path)
    client.set_tag(dead.run_id, "starpo.process", f"{socket.gethostname()}:{2**31}:1")
    experiment = client.get_run(dead.run_id).info.experiment_id

    def and_then_close(name: str) -> None:
        step = getattr(MlflowClient, name)

        def closing(self: MlflowClient, *arguments: Any, **options: Any) -> Any:
            result = step(self, *arguments, **options)
            assert close_abandoned(client, experiment) == [], f"closed after {name}"
            return result

        monkeypatch.setattr(MlflowClient, name, closing)

    for name in ("create_run", "update_run", "log_batch"):
        and_then_close(name)
    for key in ("new", "dead"):
        assert _open(tmp_path, key).run_id


@pytest.mark.slow
def test_two_processes_may_create_the_database_at_once(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tasks.tracking import open_client
open_client(Path({str(tmp_path)!r}))
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert tracked_runs(tmp_path) == []
