"""Lanes: the fixed parts of an iteration's work, computed in this process or in workers.

The number of lanes belongs to the experiment; the number of workers does not. A lane depends on its
payload only and runs on one thread, and results come back in lane order, so any number of workers
gives the same bits. On two cores two single-threaded processes are faster than two threads.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from tasks.errors import LaneError, LaneLostError

Payload = TypeVar("Payload")
Result = TypeVar("Result")


class Lanes:
    """Runs functions over lane payloads; use as a context manager.

    Args:
        workers: Number of processes; 1 computes in this process. Workers start on first use and
            end with this process, however it dies: their pipe closes.
    """

    def __init__(self, *, workers: int = 1) -> None:
        self.workers = workers
        self._pool: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def map(
        self, function: Callable[[Payload], Result], payloads: Sequence[Payload]
    ) -> list[Result]:
        """`[function(payload) for payload in payloads]`, lane `i` on worker `i % workers`.

        Args:
            function: A module-level function; it must not depend on anything but its payload.
            payloads: One per lane.

        Raises:
            LaneLostError: A worker died, or the function raised a `ConnectionError` there.
            LaneError: The function raised something else there; the message has its traceback.
        """
        if self.workers == 1 or len(payloads) == 1:
            single_thread()
            return [function(payload) for payload in payloads]
        try:
            return self._spread(function, payloads)
        except BaseException:  # a time-out too: workers may still hold answers nobody will read
            self.close()
            raise

    def close(self) -> None:
        """Stops the workers; they hold nothing that could be lost."""
        for process, connection in self._pool:
            connection.close()
            process.kill()
            process.wait()
        self._pool = []

    def _spread(
        self, function: Callable[[Payload], Result], payloads: Sequence[Payload]
    ) -> list[Result]:
        pool = self._started()
        results: list[Any] = [None] * len(payloads)
        for start in range(0, len(payloads), len(pool)):
            batch = list(enumerate(payloads))[start : start + len(pool)]
            for index, payload in batch:
                self._send(index % len(pool), (function, payload))
            for index, _ in batch:
                results[index] = self._receive(index % len(pool))
        return results

    def _started(self) -> list[tuple[subprocess.Popen[bytes], Connection]]:
        while len(self._pool) < self.workers:
            ours, theirs = socket.socketpair()
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "tasks.lane_worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "MKL_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
            theirs.close()
            self._pool.append((process, Connection(ours.detach())))
        return self._pool

    def _send(self, worker: int, message: object) -> None:
        process, connection = self._pool[worker]
        try:
            connection.send(message)
        except OSError as error:
            raise _died(worker, process) from error

    def _receive(self, worker: int) -> Any:
        process, connection = self._pool[worker]
        try:
            failure, is_passing, result = connection.recv()
        except (EOFError, OSError) as error:
            raise _died(worker, process) from error
        if failure:
            error_class = LaneLostError if is_passing else LaneError
            raise error_class(f"worker {worker} failed:\n{failure}")
        return result


def single_thread() -> None:
    """Makes torch compute on one thread: sums are then the same in every process."""
    import torch  # noqa: PLC0415 - a run that reuses everything never needs torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def _died(worker: int, process: subprocess.Popen[bytes]) -> LaneLostError:
    status = process.poll()
    return LaneLostError(
        f"worker {worker} (process {process.pid}) died, exit status {status}\n"
        "hint: often the machine ran out of memory; run again with `--workers 1`"
    )
