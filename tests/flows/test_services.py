from pathlib import Path

import httpx
import pytest

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


def test_deployments_keep_no_limit_that_a_killed_run_would_hold_for_ever() -> None:
    text = (Path(__file__).parents[2] / "prefect.yaml").read_text()
    assert "concurrency_limit" not in text


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
