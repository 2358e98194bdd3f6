"""The deployments of prefect.yaml on a server: made once, freed of runs that nobody works on."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from flows.defaults import ROOT
from flows.errors import ServerError

POOL = "starpo"
API_TIMEOUT_S = 10.0
CLOSED_MESSAGE = "`starpo up` ended while it ran; submit it again: finished stages are reused"


def deploy(url: str) -> None:
    """Creates the work pool and the deployments of prefect.yaml; again changes nothing.

    Args:
        url: The server's API.

    Raises:
        ServerError: Prefect refused; the message has its words.
    """
    for arguments in (
        ["work-pool", "create", POOL, "--type", "process", "--overwrite"],
        ["--no-prompt", "deploy", "--all"],
    ):
        done = subprocess.run(  # noqa: S603 - our own tool
            [*tool("prefect"), *arguments],
            cwd=ROOT,
            env={**os.environ, "PREFECT_API_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerError(
                f"`prefect {' '.join(arguments)}` failed:\n{done.stdout}{done.stderr}"
            )


def deployed(url: str) -> list[str]:
    """Deployments of a server as `flow/name`.

    Args:
        url: Its API.
    """
    flows = {flow["id"]: flow["name"] for flow in _post(f"{url}/flows/filter", {})}
    found = _post(f"{url}/deployments/filter", {})
    return [f"{flows[item['flow_id']]}/{item['name']}" for item in found]


def close_interrupted(url: str) -> list[str]:
    """Sets deployment runs to Crashed that an earlier `starpo up` left unfinished.

    Only for the time between the start of the server and that of its worker: then nobody works on
    them. Runs of the command line belong to no deployment and are left alone.

    Args:
        url: The server's API.

    Returns:
        Names of the runs.

    Raises:
        ServerError: The server does not answer, or refused.
    """
    unfinished = {
        "flow_runs": {
            "state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}},
            "deployment_id": {"is_null_": False},
        }
    }
    names = []
    while runs := _post(f"{url}/flow_runs/filter", unfinished):  # the server sends pages
        for run in runs:
            state = {"type": "CRASHED", "message": CLOSED_MESSAGE}
            answer = _post(
                f"{url}/flow_runs/{run['id']}/set_state", {"state": state, "force": True}
            )
            if answer["status"] != "ACCEPT":
                raise ServerError(
                    f"Prefect keeps the interrupted run `{run['name']}`: {answer['details']}\n"
                    "hint: delete that run in Prefect's page"
                )
            names.append(run["name"])
    return names


def tool(name: str) -> list[str]:
    """A command-line tool of this environment."""
    return [str(Path(sys.executable).parent / name)]


def _post(address: str, body: dict[str, Any]) -> Any:
    try:
        return httpx.post(address, json=body, timeout=API_TIMEOUT_S).raise_for_status().json()
    except httpx.HTTPError as error:
        raise ServerError(
            f"Prefect's server refused {address}: {error}\n"
            "hint: the end of `.starpo/logs/prefect-server.log` may say why"
        ) from error
