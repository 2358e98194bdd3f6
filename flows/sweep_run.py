"""The Prefect flow `starpo/sweep`: every arm with every seed, then intervals and a verdict."""

from enum import StrEnum
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.arms import ArmRun, Place, run_arms
from flows.checkpoints import pin_policies
from flows.defaults import HOME, STORE
from flows.experiment import Scale
from flows.operation import read_operation
from flows.progress import SweepProgress
from flows.starpo import cores, default_workers
from flows.summary import Summary
from flows.sweep import Arm, Sweep, chosen_arms, load_sweep, sweep_names
from flows.sweep_report import markdown, write_report
from flows.sweep_result import judged, save_result
from flows.sweep_tracking import track_sweep
from tasks.runs import read_run
from tasks.store import Store

SweepName = StrEnum("SweepName", {name: name for name in sweep_names()})  # type: ignore[misc]


class PlannedRun(BaseModel):
    """One arm with one seed, and whether it was finished before."""

    model_config = ConfigDict(frozen=True)

    arm: str
    seed: int
    finished: bool
    wall_s: float


def _run_name() -> str:
    parameters = flow_run.get_parameters()
    return f"sweep {parameters.get('sweep')} {parameters.get('scale') or ''}".strip()


@flow(name="starpo", flow_run_name=_run_name, persist_result=False)
def sweep(
    sweep: SweepName,
    *,
    scale: Scale = Scale.NANO,
    seeds: int | None = None,
    arms: list[str] | None = None,
    place: Place = Place.HERE,
    parallel: int | None = None,
    ray_address: str | None = None,
    store: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Runs a sweep of params.yaml: arms that agree up to a stage share it; a failed arm stops none.

    Args:
        sweep: Its name.
        scale: Size of policy and budgets.
        seeds: Number of seeds; the sweep's own when not given.
        arms: Only these arms, and the reference arm.
        place: Where arms run: `here` one after another, in `processes`, or on `ray`.
        parallel: Arms at a time in processes or on Ray; as many as cores when not given.
        ray_address: Address of a Ray cluster; Ray is started on this machine when not given.
        store: Folder of the store; the checkout's own when not given.
        workers: Processes that compute an arm's lanes; changes no result.

    Returns:
        The `SweepResult` as JSON, the numbers of stages executed and reused, and of task runs.
    """
    loaded = load_sweep(str(sweep), scale=scale)
    held = Store(Path(store) if store else STORE)
    if place is Place.HERE:
        parallel, workers = 1, workers or default_workers(2)
    else:
        parallel, workers = parallel or cores(), workers or 1
    chosen = chosen_arms(loaded, arms)
    runs = [
        ArmRun(
            sweep=loaded.name,
            arm=arm.name,
            seed=seed,
            overrides={**arm.overrides, "seed": seed},
            scale=scale,
            store=str(held.root),
            workers=workers,
        )
        for seed in range(seeds or loaded.settings.seeds)
        for arm in chosen
    ]
    logger = get_run_logger()
    found: dict[tuple[str, int], Summary] = {}
    failed: dict[str, str] = {}
    console = Console(stderr=True)
    with (
        held.writer(purpose=f"the sweep {loaded.name}"),
        SweepProgress(loaded.name, len(runs), console=console, logger=logger) as progress,
    ):
        for run, state in run_arms(
            runs,
            place=place,
            parallel=parallel,
            operation=read_operation(),
            ray_address=ray_address,
        ):
            if state.is_completed():
                found[run.arm, run.seed] = Summary.model_validate(state.result())
            else:
                failed[run.title] = str(state.message)
                logger.error("arm %s failed: %s", run.title, state.message)
            progress.ended(run.title)
    summaries = in_order(runs, found)
    failed = {run.title: failed[run.title] for run in runs if run.title in failed}
    result = judged(loaded, summaries, failed=failed)
    create_markdown_artifact(key="starpo-sweep", markdown=markdown(result))
    save_result(result, HOME / "results")
    write_report(result, HOME / "results")
    pin_policies(result.name, summaries, HOME / "checkpoints")
    track_sweep(HOME, loaded, result, summaries)
    return {
        **result.model_dump(mode="json"),
        "num_executed": (executed := sum(summary.num_executed for summary in found.values())),
        "num_reused": sum(summary.num_reused for summary in found.values()),
        "num_task_runs": executed + len(runs),
    }


def in_order(
    runs: list[ArmRun], found: dict[tuple[str, int], Summary]
) -> dict[str, dict[int, Summary]]:
    """Summaries by arm and seed, in the order of the plan, whatever ended first."""
    ordered: dict[str, dict[int, Summary]] = {}
    for run in runs:
        if (run.arm, run.seed) in found:
            ordered.setdefault(run.arm, {})[run.seed] = found[run.arm, run.seed]
    by_plan = list(dict.fromkeys(run.arm for run in runs))
    return {arm: ordered[arm] for arm in by_plan if arm in ordered}


def plan(sweep: Sweep, *, seeds: int | None, arms: list[str] | None) -> list[PlannedRun]:
    """The training runs of a sweep, and which of them were finished before."""
    chosen: list[Arm] = chosen_arms(sweep, arms)
    planned = []
    for seed in range(seeds or sweep.settings.seeds):
        for arm in chosen:
            run = read_run(HOME, arm.experiment(seed=seed, scale=sweep.scale).digest)
            finished = run is not None and run.ending != "running"
            wall_s = run.wall_s if run is not None else 0.0
            planned.append(PlannedRun(arm=arm.name, seed=seed, finished=finished, wall_s=wall_s))
    return planned


def print_plan(sweep: Sweep, planned: list[PlannedRun], *, console: Console) -> None:
    """Prints the arms, what is finished, and an estimate of the time."""
    table = Table(title=f"{sweep.name} ({sweep.scale}): {sweep.settings.hypothesis}")
    for column in ("arm", "changes", "seeds", "finished"):
        table.add_column(column)
    for arm in sweep.arms:
        rows = [run for run in planned if run.arm == arm.name]
        if rows:
            changes = " ".join(f"{key}={value}" for key, value in arm.overrides.items())
            done = sum(run.finished for run in rows)
            table.add_row(arm.name, changes, str(len(rows)), str(done))
    console.print(table)
    known = [run.wall_s for run in planned if run.finished and run.wall_s]
    left = sum(not run.finished for run in planned)
    seconds = left * sum(known) / len(known) if known else None
    guess = f"about {seconds / 60:.0f} minutes" if seconds is not None else "time not known yet"
    console.print(f"{len(planned)} runs, {left} to do: {guess}")
