"""Runs a command that ends with its parent: `python -m flows.leash COMMAND …`.

The command runs in a process group of its own. When standard input closes, which happens when the
parent exits however it dies, the whole group is told to end, then made to. What the command started
in groups of their own and left behind ends too, on Linux, where this process adopts it. An adopted
process that has ended is buried at once: its group would count as alive for those who ask.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

GRACE_S = 5.0
POLL_S = 0.05
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def run(command: list[str]) -> int:
    """Runs a command until it ends or the parent does.

    Returns:
        The command's exit status; 0 when the parent ended first.
    """
    _adopt_orphans()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - given by our own code
    orphaned, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while os.read(0, 1):  # empty when the parent's end of the pipe is closed
            pass
        orphaned.set()
        end_group(process.pid, ended)

    def end(*_: object) -> None:  # waiting inside a handler would wait for the wait it interrupted
        threading.Thread(target=end_group, args=(process.pid, ended), daemon=True).start()

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=watch, daemon=True).start()
    status = _wait(process)
    ended.set()
    end_group(process.pid, ended)  # what the command left behind in its group
    end_adopted()  # and in others
    return 0 if orphaned.is_set() else status


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Waits for the command, burying the adopted that end before it."""
    if sys.platform != "linux":
        return process.wait()
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if found is None or found.si_pid == process.pid:
            return process.wait()
        os.waitpid(found.si_pid, 0)


def end_group(group: int, ended: threading.Event) -> None:
    """Asks a process group to end, and kills what is left after a grace time.

    Args:
        group: Its id.
        ended: Set once its leader has ended.
    """
    for order in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, order)
        except ProcessLookupError:
            return
        ended.wait(GRACE_S)


def end_adopted() -> None:
    """Asks this process's children to end, and kills what is left after a grace time.

    A child that ends hands its own children over, so this goes on until there are none.
    """
    deadline = time.monotonic() + GRACE_S
    asked: set[int] = set()
    while children := set(_children()):
        is_late = time.monotonic() > deadline
        for child in children if is_late else children - asked:
            os.kill(child, signal.SIGKILL if is_late else signal.SIGTERM)
        asked |= children
        for child in children:
            os.waitpid(child, os.WNOHANG)
        time.sleep(POLL_S)


def _adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> Iterator[int]:
    """The ids of this process's children; none where the system has no `/proc`."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == os.getpid():
            yield int(stat.parent.name)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
