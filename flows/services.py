"""`starpo up`: Prefect server, worker and MLflow's interface on loopback, until Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import httpx
from rich.console import Console
from rich.table import Table

from flows.errors import ServerError
from flows.processes import Leashed
from flows.server import OwnServer, free_port, services_url

POOL = "starpo"
PREFECT_PORT, MLFLOW_PORT = 4200, 5000
WATCH_S = 0.5


def up(root: Path, *, console: Console) -> None:
    """Starts the three services, deploys the flows, and waits.

    Args:
        root: The checkout.
        console: Where the addresses are shown.

    Raises:
        ServerError: They run already, one did not start, or one ended on its own.
    """
    running = services_url(root)
    if running:
        raise ServerError(f"already up: Prefect answers at {running}\nhint: use it, or end it first")
    signal.signal(signal.SIGTERM, _interrupt)
    state = root / ".starpo"
    children: dict[str, Leashed] = {}
    try:
        port = free_port(PREFECT_PORT)
        server = OwnServer(state, port=port, environment={})
        children["Prefect server"] = server.child
        mlflow_url = _start_mlflow(root, children)
        url = server.wait()
        _deploy(root, url)
        children["worker"] = Leashed(
            [*_tool("prefect"), "worker", "start", "--pool", POOL, "--type", "process"],
            log=state / "logs" / "worker.log",
            environment={"PREFECT_API_URL": url, "PREFECT_WORKER_QUERY_SECONDS": "2"},
        )
        children["MLflow"].wait_until(lambda: _answers(mlflow_url), what="MLflow")
        (state / "services.json").write_text(json.dumps({"prefect": url, "mlflow": mlflow_url}))
        console.print(_addresses(url, mlflow_url))
        console.print("deployments: starpo/train, starpo/evaluate; Ctrl-C stops all three")
        _watch(children)
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        (state / "services.json").unlink(missing_ok=True)
        for child in reversed(children.values()):
            child.stop()


def _start_mlflow(root: Path, children: dict[str, Leashed]) -> str:
    from tasks.tracking import open_client  # noqa: PLC0415 - MLflow takes seconds to import

    open_client(root)  # creates the database before anybody else could
    port = free_port(MLFLOW_PORT)
    store = f"sqlite:///{root.absolute() / 'mlruns' / 'mlflow.db'}"
    command = [*_tool("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", store]
    command += ["--default-artifact-root", (root.absolute() / "mlruns" / "artifacts").as_uri()]
    log = root / ".starpo" / "logs" / "mlflow.log"
    children["MLflow"] = Leashed(command, log=log, environment={})
    return f"http://127.0.0.1:{port}"


def _deploy(root: Path, url: str) -> None:
    """Creates the work pool and the deployments of prefect.yaml; again changes nothing."""
    for arguments in (
        ["work-pool", "create", POOL, "--type", "process", "--overwrite"],
        ["--no-prompt", "deploy", "--all"],
    ):
        done = subprocess.run(  # noqa: S603 - our own tool
            [*_tool("prefect"), *arguments],
            cwd=root,
            env={**os.environ, "PREFECT_API_URL": url},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerError(f"`prefect {' '.join(arguments)}` failed:\n{done.stdout}{done.stderr}")


def _watch(children: dict[str, Leashed]) -> None:
    """Waits until a child ends on its own.

    Raises:
        ServerError: Naming the child, with the end of its log.
    """
    while True:
        for name, child in children.items():
            if child.poll() is not None:
                raise ServerError(f"{name} ended on its own (log `{child.log}`):\n{child.tail()}")
        time.sleep(WATCH_S)


def _addresses(prefect: str, mlflow: str) -> Table:
    table = Table(title="starpo is up", title_justify="left")
    table.add_column("service")
    table.add_column("address")
    table.add_row("Prefect", prefect.removesuffix("/api"))
    table.add_row("MLflow", mlflow)
    table.add_row("worker", f"process pool `{POOL}`")
    return table


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _tool(name: str) -> list[str]:
    """A command-line tool of this environment."""
    return [str(Path(sys.executable).parent / name)]


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
