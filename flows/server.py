"""The Prefect server behind a command: the one that is running, or one of our own.

Our own lasts as long as the command: it keeps its database in `.starpo/prefect`, listens on a free
loopback port, writes its log to `.starpo/logs`, and ends with this process, however that dies.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from flows.errors import ServerError

START_TIMEOUT_S = 120.0
LONGEST_WAIT_S = 0.25

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

    Args:
        state: The checkout's `.starpo` folder.
    """

    def __init__(self, state: Path) -> None:
        (state / "logs").mkdir(parents=True, exist_ok=True)
        self.log = state / "logs" / "prefect-server.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "flows.server_process", str(self.port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    **_SERVICES_OFF,
                    "PREFECT_API_URL": "",
                    "PREFECT_UI_ENABLED": "0",
                },
                start_new_session=True,  # Ctrl-C is for the command, which then ends the server
            )

    def wait(self) -> str:
        """Waits until the server answers.

        Returns:
            Its API address.

        Raises:
            ServerError: It died or did not answer in time; the message has the end of its log.
        """
        deadline, wait_s = time.monotonic() + START_TIMEOUT_S, 0.02
        while not is_healthy(self.url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text().splitlines()[-15:])
                raise ServerError(
                    f"the Prefect server did not start (log `{self.log}`):\n{tail}\n"
                    "hint: `starpo doctor` checks ports, disk and packages"
                )
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        return self.url

    def stop(self) -> None:
        """Ends the server."""
        self._process.kill()  # its state is in SQLite; nothing is lost
        self._process.wait()


@contextlib.contextmanager
def prefect_server(root: Path) -> Iterator[str]:
    """A Prefect API for this process: configured, running by `starpo up`, or our own.

    Args:
        root: The checkout.
    """
    found = os.environ.get("PREFECT_API_URL") or services_url(root)
    if found:
        if not is_healthy(found):
            raise ServerError(
                f"no Prefect server answers at PREFECT_API_URL={found}\n"
                "hint: start it (`make up`), or unset PREFECT_API_URL to use one of our own"
            )
        with _configured(found):
            yield found
        return
    server = OwnServer(root / ".starpo")
    try:
        import flows.starpo  # noqa: F401, PLC0415 - imports while the server starts

        with _configured(server.wait()):
            yield server.url
    finally:
        server.stop()


def services_url(root: Path) -> str | None:
    """The API of the server that `starpo up` runs for this checkout, if it answers."""
    path = root / ".starpo" / "services.json"
    try:
        url: str = json.loads(path.read_text())["prefect"]
    except (FileNotFoundError, json.JSONDecodeError, KeyError):
        return None
    return url if is_healthy(url) else None


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
        yield
