"""The Prefect flow `starpo`: one training run, from the command line or as a deployment."""

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.runtime import flow_run
from prefect.states import Completed
from rich.console import Console

from flows.defaults import HOME, STORE
from flows.evaluation import evaluate_policy
from flows.experiment import Experiment, Scale, load_experiment
from flows.operation import read_operation
from flows.progress import TrainingProgress
from flows.summary import Summary, markdown, summarise_run
from flows.train import Ending, Keep, Training
from tasks.lanes import Lanes
from tasks.provenance import provenance
from tasks.rebuild import restore
from tasks.runs import Run, read_run, write_run
from tasks.stage import Runtime
from tasks.store import Store
from tasks.tracking import Tracker, open_client

PROGRESS_EVERY = 10


def _train_run_name() -> str:
    """`train` and what was asked for, for instance `train env.tag=Bandit seed=1`."""
    overrides = flow_run.get_parameters().get("overrides") or {}
    return " ".join(["train", *(f"{key}={value}" for key, value in overrides.items())])


@flow(name="starpo", flow_run_name=_train_run_name, persist_result=False)
def train(
    overrides: dict[str, Any] | None = None,
    scale: Scale = Scale.NANO,
    store: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Trains one experiment; finished stages are reused, so running it again resumes it.

    Args:
        overrides: Settings by dotted name, e.g. `{"env.tag": "Bandit"}`; see params.yaml.
        scale: Size of policy and budgets.
        store: Folder of the store; the checkout's own when not given.
        workers: Processes that compute lanes; as many as cores, up to the lanes, when not given.
            Changes no result.

    Returns:
        The run's `Summary` as JSON.
    """
    experiment = load_experiment(overrides, scale=scale)
    summary = run_experiment(
        experiment,
        store=Store(Path(store) if store else STORE),
        workers=workers or default_workers(experiment.rollout.lanes),
        logger=get_run_logger(),  # type: ignore[arg-type]  # a LoggerAdapter has the same methods
    )
    create_markdown_artifact(key="starpo-summary", markdown=markdown(summary))
    result = summary.model_dump(mode="json")
    if summary.ending == Ending.STOPPED:
        return Completed(name="Stopped", message=summary.reason, data=result)  # type: ignore[return-value]
    return result


@flow(name="starpo", flow_run_name="evaluate {policy}", persist_result=False)
def evaluate(
    policy: str,
    overrides: dict[str, Any] | None = None,
    store: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Plays held-out episodes with a policy, in the environment that it was trained on.

    Args:
        policy: Folder of a policy in Hugging Face form.
        overrides: Settings by dotted name, e.g. `{"evaluate.instances": 512}`.
        store: Folder of the store; the checkout's own when not given.
        workers: Processes that compute lanes; changes no result.
    """
    place = Store(Path(store) if store else STORE)
    with place.writer(purpose=f"evaluating {policy}"), Lanes(workers=workers or 2) as lanes:
        timeout_s = read_operation().stage_timeout_s
        runtime = Runtime(store=place, lanes=lanes, timeout_s=timeout_s, restore=restore)
        return evaluate_policy(Path(policy), overrides or {}, runtime=runtime)


def run_experiment(
    experiment: Experiment,
    *,
    store: Store,
    workers: int,
    logger: logging.Logger,
    keep: Keep = Keep.ALL,
    is_arm: bool = False,
) -> Summary:
    """Runs an experiment on a store: lock, workers, tracking, progress.

    Args:
        experiment: What to run.
        store: Where outputs are kept.
        workers: Number of worker processes.
        logger: Receives progress where there is no terminal.
        keep: Which policies stay in the store.
        is_arm: Whether it belongs to a sweep, which holds the store and shows the progress.
    """
    started = time.perf_counter()
    total = experiment.train.iterations
    console = Console(stderr=True, force_terminal=False if is_arm else None)
    hold = contextlib.nullcontext() if is_arm else store.writer(purpose="training")
    with (
        hold,
        Lanes(workers=workers) as lanes,
        Tracker.open(
            HOME,
            experiment=experiment.env.tag,
            run_key=experiment.digest,
            name=f"{experiment.name} seed {experiment.seed}",
            parameters=experiment.flat(),
        ) as tracker,
        TrainingProgress(total, console=console, logger=logger) as progress,
    ):
        timeout_s = read_operation().stage_timeout_s
        runtime = Runtime(
            store=store,
            lanes=lanes,
            show_reused=not is_arm,
            timeout_s=timeout_s,
            restore=restore,
        )

        shown = create_progress_artifact(0.0, key="starpo-progress", description=experiment.name)
        assert isinstance(shown, UUID), "flows here are not asynchronous"  # noqa: S101

        earlier = read_run(HOME, experiment.digest)
        earlier_s = earlier.wall_s if earlier is not None else 0.0

        def note(ending: str, reason: str = "") -> None:
            run = Run(
                digest=experiment.digest,
                name=experiment.name,
                experiment=experiment.flat(),
                ending=ending,
                reason=reason,
                stages=runtime.calls,
                wall_s=earlier_s + sum(runtime.wall_s.values()),
            )
            write_run(HOME, run)

        def observe(iteration: int, metrics: dict[str, float]) -> None:
            tracker.log(iteration, metrics)
            progress.show(iteration, metrics)
            note("running")
            if iteration % PROGRESS_EVERY == 0 or iteration == total:
                update_progress_artifact(shown, 100.0 * iteration / max(total, 1))

        outcome = Training(experiment, runtime, observe=observe, keep=keep).run()
        if outcome.report is not None:
            tracker.log_artifact(store.path(outcome.report), name="report.html")
        tracker.log_links({"policy": outcome.policy.digest, "commit": provenance()["commit"]})
        tracker.finish(outcome.ending.value, outcome.reason)
        note(outcome.ending.value, outcome.reason)
        total_s = time.perf_counter() - started
        return summarise_run(experiment, outcome, runtime=runtime, total_s=total_s)


def prepare() -> None:
    """Does what takes seconds once and needs no Prefect server: imports and MLflow's database."""
    open_client(HOME)


def default_workers(lanes: int) -> int:
    """As many workers as lanes, but no more than processor cores."""
    return max(1, min(lanes, cores()))


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))
