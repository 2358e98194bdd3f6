"""`starpo up`: Prefect server, worker and MLflow's interface on loopback, until Ctrl-C."""

import contextlib
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import FrameType

import httpx
from rich.console import Console
from rich.table import Table

from flows.deployments import POOL, close_interrupted, deploy, deployed, tool
from flows.errors import ServerError
from flows.processes import Leashed
from flows.server import OwnServer, announced, free_port, services_url

PREFECT_PORT, MLFLOW_PORT = 4200, 5000
WATCH_S = 0.5


class Service(StrEnum):
    """What `starpo up` can run."""

    PREFECT = "prefect"
    """Prefect's server and interface, with a worker for the deployments."""
    MLFLOW = "mlflow"
    """MLflow's interface over `mlruns/`."""


def parse_services(names: Sequence[str]) -> frozenset[Service]:
    """Services by name; all of them for no name.

    Raises:
        ServerError: No such service.
    """
    unknown = sorted(set(names) - set(Service))
    if unknown:
        known = ", ".join(Service)
        raise ServerError(f"unknown service `{unknown[0]}`\nhint: known are {known}")
    return frozenset(map(Service, names)) or frozenset(Service)


def up(root: Path, *, services: Collection[Service], console: Console) -> None:
    """Starts services, shows their addresses, and waits until Ctrl-C.

    Args:
        root: Holds `.starpo` and `mlruns`.
        services: Which; at least one.
        console: Where the addresses are shown.

    Raises:
        ServerError: Prefect runs already, a service did not start, or one ended on its own.
    """
    running = services_url(root)
    if running and Service.PREFECT in services:
        raise ServerError(f"already up: {running} answers\nhint: use it, or end it first")
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's `&` would have Ctrl-C ignored
        signal.signal(number, _interrupt)
    children: dict[str, Leashed] = {}
    addresses: dict[str, str] = {}
    try:
        server = _start_prefect(root, children) if Service.PREFECT in services else None
        if Service.MLFLOW in services:
            addresses[Service.MLFLOW] = _start_mlflow(root, children)
        if server is not None:
            addresses[Service.PREFECT] = _start_worker(root, server, children)
        serves = Service.PREFECT in addresses  # MLflow's page alone is nothing to announce
        with announced(root, addresses) if serves else contextlib.nullcontext():
            console.print(_addresses(addresses))
            _watch(children)
    except KeyboardInterrupt:
        console.print("stopping")
    finally:
        for child in reversed(children.values()):
            child.stop()


def _start_prefect(root: Path, children: dict[str, Leashed]) -> OwnServer:
    server = OwnServer(root / ".starpo", port=free_port(PREFECT_PORT), environment={})
    children["Prefect server"] = server.child
    return server


def _start_worker(root: Path, server: OwnServer, children: dict[str, Leashed]) -> str:
    url = server.wait()
    deploy(url)
    close_interrupted(url)
    # one run at a time, since the store has one writer; a limit kept by the server would go on
    # counting a run that was killed
    children["worker"] = Leashed(
        [*tool("prefect"), "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1"],
        log=root / ".starpo" / "logs" / "worker.log",
        environment={"PREFECT_API_URL": url, "PREFECT_WORKER_QUERY_SECONDS": "2"},
    )
    return url


def _start_mlflow(root: Path, children: dict[str, Leashed]) -> str:
    from tasks.tracking import open_client  # noqa: PLC0415 - MLflow takes seconds to import

    open_client(root)  # creates the database before anybody else could
    port = free_port(MLFLOW_PORT)
    store = f"sqlite:///{root.absolute() / 'mlruns' / 'mlflow.db'}"
    command = [*tool("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", store]
    command += ["--default-artifact-root", (root.absolute() / "mlruns" / "artifacts").as_uri()]
    log = root / ".starpo" / "logs" / "mlflow.log"
    child = Leashed(command, log=log, environment={})
    children["MLflow"] = child
    url = f"http://127.0.0.1:{port}"
    child.wait_until(lambda: _answers(url), what="MLflow")
    return url


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


def _addresses(addresses: Mapping[str, str]) -> Table:
    table = Table(title="starpo is up; Ctrl-C stops it", title_justify="left")
    table.add_column("service")
    table.add_column("address")
    for service, url in addresses.items():
        table.add_row(service, url.removesuffix("/api"))
    if Service.PREFECT in addresses:
        names = ", ".join(deployed(addresses[Service.PREFECT]))
        table.add_row("worker", f"runs the deployments {names}")
    return table


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
