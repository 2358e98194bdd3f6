"""The Prefect flow `starpo/sweep`: every arm with every seed, one training run after another."""

from enum import StrEnum
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.defaults import HOME
from flows.experiment import Scale
from flows.starpo import train
from flows.summary import Summary
from flows.sweep import Arm, Sweep, chosen_arms, load_sweep, sweep_names
from flows.sweep_report import judged, markdown, pin_policies, write_results
from tasks.runs import known_runs

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
    store: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Runs a sweep of params.yaml: arms that agree up to a stage share it; a failed arm stops none.

    Args:
        sweep: Its name.
        scale: Size of policy and budgets.
        seeds: Number of seeds; the sweep's own when not given.
        arms: Only these arms, and the reference arm.
        store: Folder of the store; the checkout's own when not given.
        workers: Processes that compute lanes; changes no result.

    Returns:
        The `SweepResult` as JSON.
    """
    loaded = load_sweep(str(sweep), scale=scale)
    logger = get_run_logger()
    summaries: dict[str, dict[int, Summary]] = {}
    failed: dict[str, str] = {}
    num_executed = num_reused = 0
    for seed in range(seeds or loaded.settings.seeds):
        for arm in chosen_arms(loaded, arms):
            state = train(
                overrides={**arm.overrides, "seed": seed},
                scale=scale,
                store=store,
                workers=workers,
                return_state=True,
            )
            if state.is_completed():
                summary = Summary.model_validate(state.result())
                summaries.setdefault(arm.name, {})[seed] = summary
                num_executed += summary.num_executed
                num_reused += summary.num_reused
            else:
                failed[f"{arm.name}, seed {seed}"] = str(state.message)
                logger.error("arm `%s`, seed %s failed: %s", arm.name, seed, state.message)
    result = judged(loaded, summaries, failed=failed)
    create_markdown_artifact(key="starpo-sweep", markdown=markdown(result))
    write_results(result, HOME / "results")
    pin_policies(result.name, summaries, HOME / "checkpoints")
    return {
        **result.model_dump(mode="json"),
        "num_executed": num_executed,
        "num_reused": num_reused,
    }


def plan(sweep: Sweep, *, seeds: int | None, arms: list[str] | None) -> list[PlannedRun]:
    """The training runs of a sweep, and which of them were finished before."""
    runs = known_runs(HOME)
    chosen: list[Arm] = chosen_arms(sweep, arms)
    planned = []
    for seed in range(seeds or sweep.settings.seeds):
        for arm in chosen:
            run = runs.get(arm.experiment(seed=seed, scale=sweep.scale).digest)
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
