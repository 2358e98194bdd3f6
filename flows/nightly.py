"""The Prefect flow `benchmark`: measures the suite once a date and fails when it became worse.

The history is in MLflow, one run a night; only nights of the same machine are compared.
"""

import datetime
import json
import platform
from enum import StrEnum
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.defaults import HOME, STORE
from flows.nightly_suite import Figures, measure
from tasks.digest import digest_json
from tasks.provenance import provenance
from tasks.regression import MIN_HISTORY, SLOWDOWN, judge
from tasks.store import Store
from tasks.tracking import FinishedRun, Tracker, finished_runs

EXPERIMENT = "nightly"
SUITE = HOME / ".starpo" / "nightly"


class Verdict(StrEnum):
    """What a night says."""

    SAME = "no regression"
    REGRESSION = "regression"
    TOO_FEW = "not enough nights to judge"
    DONE = "done already"
    BUSY = "the machine is in use"


class FigureRow(BaseModel):
    """One figure tonight; larger is worse.

    Attributes:
        value: Tonight's.
        change: Of the last nights against those before, as a share; None when not judged.
        threshold: The change from which it is a regression.
        power: Chance that a slowdown of five per cent is found within three nights.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    value: float
    change: float | None = None
    threshold: float | None = None
    power: float | None = None
    is_regression: bool = False


class Night(BaseModel):
    """The result of a night; JSON-ready."""

    model_config = ConfigDict(frozen=True)

    date: str
    machine: str
    verdict: Verdict
    num_history: int
    rows: list[FigureRow]


def _run_name() -> str:
    return f"nightly {flow_run.get_parameters().get('date') or today()}"


@flow(name="benchmark", flow_run_name=_run_name, persist_result=False)
def nightly(date: str | None = None, *, accept: bool = False) -> Any:
    """Measures the nightly suite and compares it with the nights before; once a date.

    Args:
        date: The night, `YYYY-MM-DD`; today when not given.
        accept: Start a new history with this night: what moved is meant.

    Returns:
        A `Night` as JSON. The run ends Failed on a regression, and Skipped when the date is done
        or another command of this checkout uses the machine.
    """
    date = datetime.date.fromisoformat(date or today()).isoformat()
    nights = history()
    known = next((night for night in nights if night.name == date), None)
    if known is not None and not accept:
        return _skipped(date, Verdict.DONE)
    busy = Store(STORE).holder()
    if busy is not None:
        return _skipped(date, Verdict.BUSY)
    figures = measure_suite()
    earlier = since_accepted([night for night in nights if night.name < date])
    night = judged(date, figures, [] if accept else earlier)
    remember(night, figures, is_accepted=accept)
    text = markdown(night)
    create_markdown_artifact(key="nightly", markdown=text)
    if night.verdict is Verdict.REGRESSION:
        worse = ", ".join(row.name for row in night.rows if row.is_regression)
        return Failed(message=f"worse than before: {worse}", data=night.model_dump(mode="json"))
    return night.model_dump(mode="json")


@task(name="measure", persist_result=False)
def measure_suite() -> Figures:
    """Runs the suite in a process of its own."""
    return measure(SUITE)


def today() -> str:
    """The date here."""
    return datetime.datetime.now().astimezone().date().isoformat()


def machine() -> str:
    """The machine whose nights are compared with each other."""
    return f"{platform.node()}, {provenance()['machine']}"


def history() -> list[FinishedRun]:
    """The nights of this machine, oldest first."""
    nights = [
        night for night in finished_runs(HOME, EXPERIMENT) if night.tags["machine"] == machine()
    ]
    return sorted(nights, key=lambda night: (night.name, night.tags["accepted"] == "yes"))


def since_accepted(nights: list[FinishedRun]) -> list[FinishedRun]:
    """The nights from the last one on whose figures were accepted."""
    accepted = [number for number, night in enumerate(nights) if night.tags["accepted"] == "yes"]
    return nights[accepted[-1] :] if accepted else nights


def judged(date: str, figures: Figures, earlier: list[FinishedRun]) -> Night:
    """Compares a night with those before."""
    rows = []
    names = list(Figures.model_fields)
    for name in names:
        value = getattr(figures, name)
        values = [*(night.metrics[f"nightly/{name}"] for night in earlier), value]
        found = judge(values, num_figures=len(names))
        row = FigureRow(name=name, value=value)
        if found.num_history >= MIN_HISTORY:
            row = FigureRow(
                name=name,
                value=value,
                change=found.change,
                threshold=found.threshold,
                power=found.power,
                is_regression=found.is_regression,
            )
        rows.append(row)
    verdict = Verdict.SAME if all(row.change is not None for row in rows) else Verdict.TOO_FEW
    if any(row.is_regression for row in rows):
        verdict = Verdict.REGRESSION
    return Night(date=date, machine=machine(), verdict=verdict, num_history=len(earlier), rows=rows)


def remember(night: Night, figures: Figures, *, is_accepted: bool) -> None:
    """Adds a night to the history; one that is there already is continued with the new figures."""
    with Tracker.open(
        HOME,
        experiment=EXPERIMENT,
        run_key=digest_json([night.date, night.machine, figures.model_dump(), is_accepted]),
        name=night.date,
        parameters={"commit": provenance()["commit"], "dirty": provenance()["dirty"]},
        tags={
            "starpo.machine": night.machine,
            "starpo.accepted": "yes" if is_accepted else "no",
        },
    ) as tracker:
        tracker.log(0, {f"nightly/{name}": value for name, value in figures.model_dump().items()})
        tracker.finish(
            night.verdict.value, json.dumps(night.model_dump(mode="json")["rows"])[:4000]
        )


def _skipped(date: str, verdict: Verdict) -> Any:
    night = Night(date=date, machine=machine(), verdict=verdict, num_history=0, rows=[])
    data = night.model_dump(mode="json")
    return Completed(name="Skipped", message=verdict.value, data=data)


def markdown(night: Night) -> str:
    """What moved, for Prefect's artifact."""
    lines = [
        f"# {night.date}: {night.verdict}",
        "",
        f"{night.machine}; {night.num_history} nights before. Larger is worse. Times are processor "
        "time over that of a fixed piece of work.",
        "",
        f"| | tonight | last nights against before | regression from | {SLOWDOWN:.0%} found |",
        "|---|---|---|---|---|",
    ]
    for row in night.rows:
        mark = " **worse**" if row.is_regression else ""
        lines.append(f"| {' | '.join(_cells(row))}{mark} |")
    return "\n".join(lines)


def print_night(night: Night, *, console: Console) -> None:
    """Prints the night as a table."""
    table = Table(title=f"{night.date}: {night.verdict}", title_justify="left")
    for name in ("", "tonight", "last nights against before", "regression from", "5 % found"):
        table.add_column(name)
    for row in night.rows:
        table.add_row(*_cells(row), style="red" if row.is_regression else None)
    console.print(table)
    console.print(f"{night.num_history} nights of this machine before; larger is worse")


def _cells(row: FigureRow) -> list[str]:
    if row.change is None or row.threshold is None or row.power is None:
        return [row.name, f"{row.value:.4g}", "", "", ""]
    numbers = [f"{row.change:+.1%}", f"{row.threshold:+.1%}", f"{row.power:.0%}"]
    return [row.name, f"{row.value:.4g}", *numbers]
