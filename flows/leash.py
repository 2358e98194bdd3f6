"""Runs a command that ends with its parent: `python -m flows.leash COMMAND …`.

The command runs in a process group of its own. When standard input closes, which happens when the
parent exits however it dies, the whole group is told to end, then made to.
"""

import os
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0


def run(command: list[str]) -> int:
    """Runs a command until it ends or the parent does.

    Returns:
        The command's exit status; 0 when the parent ended first.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - given by our own code
    orphaned = threading.Event()

    def watch() -> None:
        while os.read(0, 1):  # empty when the parent's end of the pipe is closed
            pass
        orphaned.set()
        end_group(process)

    signal.signal(signal.SIGTERM, lambda *_: end_group(process))
    threading.Thread(target=watch, daemon=True).start()
    status = process.wait()
    end_group(process)  # what the command left behind in its group
    return 0 if orphaned.is_set() else status


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Asks a process group to end, and kills what is left after a grace time."""
    for order, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, order)
            process.wait(patience_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
