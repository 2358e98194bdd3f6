"""Runs the arms of a sweep: one after another here, in worker processes, or on a Ray cluster."""

import contextlib
import contextvars
import logging
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import httpx
from prefect import State, Task, flow, get_run_logger, task
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import PrefectHTTPStatusError
from prefect.futures import PrefectFuture, as_completed
from prefect.runtime import flow_run, task_run
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner
from prefect.tasks import exponential_backoff
from pydantic import BaseModel, ConfigDict

from flows.errors import ClusterError, ExperimentError
from flows.experiment import Scale, load_experiment
from flows.operation import OperationSettings
from flows.processes import end_with
from flows.starpo import run_experiment
from flows.train import Keep
from tasks.store import Store

PASSING_ERRORS = (ConnectionError, httpx.TransportError, PrefectHTTPStatusError)
"""A server or a worker failed; the arm itself may well be right."""


class Place(StrEnum):
    """Where arms run."""

    HERE = "here"
    """One after another, in this process; each uses all cores."""
    PROCESSES = "processes"
    """Several at a time, in worker processes of this machine."""
    RAY = "ray"
    """Several at a time, on a Ray cluster that shares the store's folder."""


def parse_place(text: str) -> Place:
    """The place of this name.

    Raises:
        ExperimentError: There is none.
    """
    try:
        return Place(text)
    except ValueError as error:
        raise ExperimentError(
            f"unknown place `{text}`\nhint: known are {', '.join(Place)}"
        ) from error


class ArmRun(BaseModel):
    """One arm with one seed.

    Attributes:
        sweep: Name of the sweep.
        arm: Name of the arm.
        seed: The seed, also among the overrides.
        overrides: Settings by dotted name.
        scale: Size of policy and budgets.
        store: Folder of the store, held by the sweep.
        workers: Processes that compute lanes.
    """

    model_config = ConfigDict(frozen=True)

    sweep: str
    arm: str
    seed: int
    overrides: dict[str, Any]
    scale: Scale
    store: str
    workers: int

    @property
    def title(self) -> str:
        """As it is shown to people."""
        return f"{self.arm}, seed {self.seed}"


def _flow_run_name() -> str:
    run: ArmRun = flow_run.get_parameters()["run"]
    return f"{run.sweep} {run.arm} seed {run.seed}"


def _task_run_name() -> str:
    run: ArmRun = task_run.get_parameters()["run"]
    return f"{run.arm} seed {run.seed}"


@flow(name="arm", flow_run_name=_flow_run_name, persist_result=False)
def arm_flow(run: ArmRun) -> dict[str, Any]:
    """Trains one arm with one seed, in a store that its sweep holds.

    Returns:
        The run's `Summary` as JSON.
    """
    logger: logging.Logger = get_run_logger()  # type: ignore[assignment]  # an adapter of one
    summary = run_experiment(
        load_experiment(run.overrides, scale=run.scale),
        store=Store(Path(run.store)),
        workers=run.workers,
        logger=logger,
        keep=Keep.ENDS,
        is_arm=True,
    )
    return summary.model_dump(mode="json")


def is_passing(task: Task[Any, Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether an arm failed for a reason that may pass: only then it is tried again."""
    del task, run
    return isinstance(state.result(raise_on_failure=False), PASSING_ERRORS)


@task(name="arm", task_run_name=_task_run_name, persist_result=False)
def arm(run: ArmRun) -> dict[str, Any]:
    """One arm with one seed as a task, so that a runner can place it and retry it."""
    return arm_flow(run)


def run_arms(
    runs: Sequence[ArmRun],
    *,
    place: Place,
    parallel: int,
    operation: OperationSettings,
    ray_address: str | None = None,
) -> Iterator[tuple[ArmRun, State[Any]]]:
    """Runs arms; each comes back when it ended, with its final state.

    Args:
        runs: What to run.
        place: Where.
        parallel: Arms at a time, unless `place` is HERE.
        operation: Retries.
        ray_address: A cluster's address; Ray is started on this machine when not given.

    Raises:
        ClusterError: The cluster cannot hold an arm at all.
    """
    retried = arm.with_options(
        retries=operation.retries,
        retry_delay_seconds=exponential_backoff(operation.retry_after_s),
        retry_jitter_factor=0.5,
        retry_condition_fn=is_passing,
    )
    if place is Place.HERE:
        for run in runs:
            yield run, retried(run, return_state=True)
        return
    workers = max((run.workers for run in runs), default=1)
    with _runner(place, parallel, ray_address, workers) as runner:
        waiting: dict[PrefectFuture[Any], ArmRun] = {
            runner.submit(retried, parameters={"run": run}): run for run in runs
        }
        for future in as_completed(list(waiting)):
            future.wait()
            yield waiting[future], future.state


@contextlib.contextmanager
def _runner(
    place: Place, parallel: int, address: str | None, workers: int
) -> Iterator[TaskRunner[Any]]:
    if place is Place.RAY:
        from prefect_ray import RayTaskRunner  # noqa: PLC0415 - takes seconds, and few use it
        from prefect_ray.context import remote_options  # noqa: PLC0415 - as above

        cpus = {} if address else {"num_cpus": parallel * workers}
        options = {"include_dashboard": False, "log_to_driver": False, **cpus}
        with RayTaskRunner(address=address, init_kwargs=options) as runner:
            check_cluster(workers)
            with remote_options(num_cpus=workers):
                yield runner
        return
    with _Pool(max_workers=parallel, initializer=end_with, initargs=(os.getpid(),)) as runner:
        try:
            yield runner
        except BaseException:  # stopped: do not wait for arms, the same command resumes them
            for child in multiprocessing.active_children():
                child.kill()
            raise


class _Pool(ProcessPoolTaskRunner):
    """Prefect's pool, whose workers' logs and events reach the server of this process.

    Prefect hands them on in a thread that knows the environment's settings alone.
    """

    def __enter__(self) -> Self:
        self._settings = contextvars.copy_context()
        return super().__enter__()

    def _forward_subprocess_messages(self) -> None:
        self._settings.run(super()._forward_subprocess_messages)


def check_cluster(cpus: int) -> None:
    """Checks that some node of the connected Ray cluster can hold an arm.

    Args:
        cpus: Processor cores that an arm asks for.

    Raises:
        ClusterError: None can, so Ray would wait for ever.
    """
    import ray  # noqa: PLC0415 - takes seconds, and few use it

    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"].get("CPU", 0) for node in known if node["Alive"]]
    if max(nodes, default=0) < cpus:
        raise ClusterError(
            f"an arm asks for {cpus} CPUs, and no node of the Ray cluster has them: "
            f"its nodes have {', '.join(f'{count:g}' for count in nodes) or 'none'}\n"
            "hint: `--workers` with fewer, or a larger node"
        )
