import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from flows.defaults import ROOT
from flows.deployments import close_interrupted
from flows.errors import ServerError
from flows.processes import Leashed
from flows.services import Service, _watch, parse_services


def test_no_name_means_every_service() -> None:
    assert parse_services([]) == frozenset(Service)
    assert parse_services(["mlflow"]) == {Service.MLFLOW}


def test_an_unknown_service_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ServerError, match="`ray`\nhint: known are prefect, mlflow"):
        parse_services(["mlflow", "ray"])


def test_a_service_that_ends_on_its_own_is_named_with_its_last_words(tmp_path: Path) -> None:
    child = Leashed(["sh", "-c", "echo no more room"], log=tmp_path / "log", environment={})
    with pytest.raises(ServerError, match="worker ended on its own(.|\n)*no more room"):
        _watch({"worker": child})


LIMITED = """
import os, signal, sys
from pathlib import Path
import httpx
from flows import defaults
from flows.deployments import close_interrupted
from flows.server import prefect_server

def post(place, body):
    return httpx.post(f"{api.url}/{place}", json=body, timeout=20).raise_for_status().json()

def state_of_a_new_run():
    run = post(f"deployments/{deployment}/create_flow_run", {})["id"]
    found = post(f"flow_runs/{run}/set_state", {"state": {"type": "PENDING"}})["state"]
    if found["type"] == "PENDING":
        post(f"flow_runs/{run}/set_state", {"state": {"type": "RUNNING"}})
    return found["type"]

defaults.apply()
with prefect_server(Path(sys.argv[1])) as api:
    closed = len(close_interrupted(api.url))
    flow = post("flows/", {"name": "limited"})["id"]
    limit = {"concurrency_limit": 1, "concurrency_options": {"collision_strategy": "CANCEL_NEW"}}
    deployment = post("deployments/", {"name": "limited", "flow_id": flow, **limit})["id"]
    print(closed, state_of_a_new_run(), state_of_a_new_run(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.server
@pytest.mark.slow
def test_C6_a_killed_run_does_not_hold_a_deployments_limit_for_ever(
    home: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    first, second = (
        subprocess.run(command, cwd=ROOT, env=home, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.stdout == "0 PENDING CANCELLED\n", first.stderr
    assert second.stdout == "1 PENDING CANCELLED\n", second.stderr


def _create(server: str, *, state: str, deployment: str | None, flow: str) -> str:
    body = {"flow_id": flow, "state": {"type": state}, "deployment_id": deployment}
    return str(httpx.post(f"{server}/flow_runs/", json=body).raise_for_status().json()["id"])


@pytest.mark.server
def test_C6_only_deployment_runs_that_nobody_works_on_are_closed(server: str) -> None:
    flow = httpx.post(f"{server}/flows/", json={"name": "closed"}).json()["id"]
    body = {"name": "closed", "flow_id": flow}
    deployment = httpx.post(f"{server}/deployments/", json=body).json()["id"]
    runs = {
        (state, owner): _create(server, state=state, deployment=owner, flow=flow)
        for state in ("RUNNING", "PENDING", "CANCELLING", "SCHEDULED", "COMPLETED")
        for owner in (deployment, None)
    }
    assert len(close_interrupted(server)) == 3
    states = {
        key: httpx.get(f"{server}/flow_runs/{run}").json()["state"]["type"]
        for key, run in runs.items()
    }
    assert states == {
        key: "CRASHED" if key[1] and key[0] in ("RUNNING", "PENDING", "CANCELLING") else key[0]
        for key in runs
    }
    assert close_interrupted(server) == []
