"""Child processes on a leash: logged to a file, awaited with patience, never left behind."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flows.errors import ServerError
from flows.leash import GRACE_S

START_TIMEOUT_S = 120.0
LONGEST_WAIT_S = 0.25
TAIL_LINES = 15
PARENT_POLL_S = 0.5


def end_with(parent: int) -> None:
    """Ends this process once `parent` is no longer its parent, however that died."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Leashed:
    """A command that ends when this process does, however it dies.

    Args:
        command: What to run.
        log: File that its output goes to.
        environment: Variables that differ from this process's.
    """

    def __init__(self, command: list[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file:
            self._process = subprocess.Popen(  # noqa: S603 - given by our own code
                [sys.executable, "-m", "flows.leash", *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the parent, which then ends the child
            )

    def poll(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def wait_until(self, ready: Callable[[], bool], *, what: str) -> None:
        """Waits until it is ready.

        Raises:
            ServerError: It ended, or was not ready in time; the message has the end of its log.
        """
        deadline, wait_s = time.monotonic() + START_TIMEOUT_S, 0.02
        while not ready():
            if self.poll() is not None or time.monotonic() > deadline:
                raise ServerError(
                    f"{what} did not start (log `{self.log}`):\n{self.tail()}\n"
                    "hint: `starpo doctor` checks ports, disk and packages"
                )
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def stop(self) -> None:
        """Ends it and everything that it started."""
        assert self._process.stdin is not None, "opened as a pipe"  # noqa: S101
        self._process.stdin.close()
        try:
            self._process.wait(3 * GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def processes_of(home: Path) -> list[int]:
    """Other processes that were started for a home: all of them carry it in their environment."""
    mark, found = f"STARPO_HOME={home}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                carries = mark in (folder / "environ").read_bytes().split(b"\0")
                is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if carries and not is_zombie:
                found.append(int(folder.name))
    return found
