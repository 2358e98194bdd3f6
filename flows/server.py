"""The Prefect server behind a command: the one that is running, or one of our own.

Our own lasts as long as the command: it keeps its database in `.starpo/prefect`, listens on a free
loopback port, writes its log to `.starpo/logs`, and ends with this process, however that dies.
"""

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import httpx

from flows.errors import ServerError
from flows.processes import Leashed

DELIVERY_TIMEOUT_S = 5.0

# services that a server of one command does not need
_SERVICES_OFF = {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"
    for name in (
        "CANCELLATION_CLEANUP",
        "DB_VACUUM",
        "FOREMAN",
        "LATE_RUNS",
        "PAUSE_EXPIRATIONS",
        "REPOSSESSOR",
        "SCHEDULER",
        "TRIGGERS",
    )
}


class OwnServer:
    """A Prefect server process of this command; start early, wait late.

    Servers of one home start one after another: two that create its database at once break each
    other's start.

    Args:
        state: The checkout's `.starpo` folder.
        port: Port on loopback.
        environment: Settings of the server.
    """

    def __init__(self, state: Path, *, port: int, environment: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}/api"
        command = [sys.executable, "-m", "uvicorn", "--factory", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--log-level", "warning"]
        command += ["prefect.server.api.server:create_app"]
        self._turn = (Path(os.environ["PREFECT_HOME"]) / "start.lock").open("a")
        fcntl.flock(self._turn, fcntl.LOCK_EX)  # until it is closed
        self.child = Leashed(
            command,
            log=state / "logs" / "prefect-server.log",
            environment={**environment, "PREFECT_API_URL": ""},
        )

    def wait(self) -> str:
        """Waits until the server answers.

        Returns:
            Its API address.

        Raises:
            ServerError: It died or did not answer in time; the message has the end of its log.
        """
        with self._turn:
            self.child.wait_until(lambda: is_healthy(self.url), what="the Prefect server")
        return self.url

    def stop(self) -> None:
        """Ends the server."""
        self.child.stop()
        self._turn.close()


@dataclass(frozen=True)
class Api:
    """A Prefect API.

    Attributes:
        url: Its address.
        is_temporary: Whether it ends with this command.
    """

    url: str
    is_temporary: bool


@contextlib.contextmanager
def prefect_server(root: Path) -> Iterator[Api]:
    """A Prefect API for this process: configured, running by `starpo up`, or our own.

    Args:
        root: Holds `.starpo`.
    """
    found = os.environ.get("PREFECT_API_URL") or services_url(root)
    if found:
        if not is_healthy(found):
            raise ServerError(
                f"no Prefect server answers at PREFECT_API_URL={found}\n"
                "hint: start it (`make up`), or unset PREFECT_API_URL to use one of our own"
            )
        with _configured(found):
            yield Api(found, is_temporary=False)
        return
    server = OwnServer(root / ".starpo", port=free_port(), environment=_SERVICES_OFF)
    try:
        from flows.starpo import prepare  # noqa: PLC0415 - imports while the server starts

        prepare()
        with _configured(server.wait()), _without_heartbeats():
            yield Api(server.url, is_temporary=True)
    finally:
        server.stop()


def ended_task_runs(url: str) -> int:
    """Number of task runs that the server has recorded to their end.

    Raises:
        ServerError: It does not answer.
    """
    ended = {"task_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}}}
    try:
        return int(httpx.post(f"{url}/task_runs/count", json=ended, timeout=5.0).json())
    except httpx.HTTPError as error:
        raise ServerError(
            f"the Prefect server at {url} went away: {error}\nhint: run the same command again"
        ) from error


def await_task_runs(url: str, number: int) -> None:
    """Waits until the server has recorded so many ended task runs, or patience ends.

    Prefect's server records task runs from a stream of events, some time after they happened; one
    that is stopped too early forgets the last of them.
    """
    deadline = time.monotonic() + DELIVERY_TIMEOUT_S
    while ended_task_runs(url) < number and time.monotonic() < deadline:
        time.sleep(0.05)


def services_url(root: Path) -> str | None:
    """The API of the server that `starpo up` runs for this folder, if it answers.

    A note that a killed `starpo up` left behind is ignored: nobody holds it any more, and its port
    may be another checkout's by now.

    Args:
        root: Holds `.starpo`.
    """
    try:
        with _services_file(root).open() as file:
            if _locked(file, fcntl.LOCK_SH):
                return None
            url: str = json.loads(file.read())["prefect"]
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None
    return url if is_healthy(url) else None


@contextlib.contextmanager
def announced(root: Path, addresses: Mapping[str, str]) -> Iterator[None]:
    """Notes the addresses of `starpo up` for other commands, held as long as the body runs.

    Args:
        root: Holds `.starpo`.
        addresses: By service; Prefect's is that of its API.

    Raises:
        ServerError: Another `starpo up` holds the note.
    """
    path = _services_file(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        if not _locked(file, fcntl.LOCK_EX):
            raise ServerError(f"already up: another `starpo up` holds `{path}`\nhint: end it first")
        file.truncate(0)
        file.write(json.dumps(dict(addresses)))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _services_file(root: Path) -> Path:
    return root / ".starpo" / "services.json"


def _locked(file: TextIO, kind: int) -> bool:
    """Locks a file, until it is closed, unless another process holds it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_healthy(url: str) -> bool:
    """Whether a Prefect API answers."""
    try:
        return httpx.get(f"{url}/health", timeout=2.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def free_port(preferred: int = 0) -> int:
    """A loopback port that nobody listens on: the preferred one if possible."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            chosen: int = probe.getsockname()[1]
            return chosen
    raise ServerError("no free loopback port\nhint: close some programs that listen")


@contextlib.contextmanager
def _configured(url: str) -> Iterator[None]:
    """Points this process's Prefect client at the server."""
    from prefect.settings import PREFECT_API_URL, temporary_settings  # noqa: PLC0415 - slow import

    with temporary_settings({PREFECT_API_URL: url}):
        try:
            yield
        finally:
            _deliver()


@contextlib.contextmanager
def _without_heartbeats() -> Iterator[None]:
    """Sends no signs of life of a flow run to a server that ends with it.

    Stopping the thread that sends them costs each flow run a second.
    """
    from prefect.settings import (  # noqa: PLC0415 - slow import
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def _deliver() -> None:
    """Sends the logs and events that are still queued, while the server is there to take them."""
    from prefect.events.worker import EventsWorker  # noqa: PLC0415 - slow import
    from prefect.logging.handlers import APILogWorker  # noqa: PLC0415

    for queue in (APILogWorker, EventsWorker):
        queue.drain_all(timeout=DELIVERY_TIMEOUT_S)
