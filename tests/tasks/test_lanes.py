import os
import signal
import subprocess
import sys
import time

import pytest

from tasks.errors import LaneError
from tasks.lanes import Lanes


def square(value: int) -> tuple[int, int]:
    return value * value, os.getpid()


def fail(value: int) -> None:
    raise ValueError(f"bad payload {value}")


def die(value: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_back_in_lane_order(workers: int) -> None:
    with Lanes(workers=workers) as lanes:
        results = lanes.map(square, [1, 2, 3, 4, 5])
    assert [value for value, _ in results] == [1, 4, 9, 16, 25]
    assert len({process for _, process in results}) == workers


def test_a_failure_carries_the_workers_traceback() -> None:
    with Lanes(workers=2) as lanes, pytest.raises(LaneError, match="bad payload 1"):
        lanes.map(fail, [1, 2])


def test_a_dead_worker_is_reported_and_not_waited_for() -> None:
    with Lanes(workers=2) as lanes, pytest.raises(LaneError, match="died"):
        lanes.map(die, [1, 2])


def test_C6_workers_end_when_their_parent_is_killed() -> None:
    code = (
        "import os, signal, operator\n"
        "from tasks.lanes import Lanes\n"
        "lanes = Lanes(workers=2)\n"
        "lanes.map(operator.neg, [0, 1])\n"
        "print(*[process.pid for process, _ in lanes._pool], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    workers = [int(text) for text in done.stdout.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(_alive(worker) for worker in workers):
        time.sleep(0.05)
    assert not any(_alive(worker) for worker in workers)


def _alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False
