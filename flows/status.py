"""`starpo status`: the runs of this checkout, what its store holds, and which servers answer."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.defaults import STORE
from flows.server import services_url
from tasks.store import Store
from tasks.tracking import TrackedRun, tracked_runs

MAX_RUNS = 20


class Status(BaseModel):
    """What is there; JSON-ready."""

    model_config = ConfigDict(frozen=True)

    runs: list[TrackedRun]
    store: str
    num_objects: int
    num_records: int
    num_bytes: int
    held_by: str | None
    prefect: str | None


def read_status(root: Path, *, store: Path | None) -> Status:
    """Looks; changes nothing.

    Args:
        root: Holds `.starpo` and `mlruns`.
        store: Folder of the store; the checkout's own when None.
    """
    place = Store(store or STORE)
    contents = place.contents()
    return Status(
        runs=tracked_runs(root)[:MAX_RUNS],
        store=str(place.root),
        num_objects=contents.num_objects,
        num_records=contents.num_records,
        num_bytes=contents.num_bytes,
        held_by=place.holder(),
        prefect=services_url(root),
    )


def print_status(status: Status, *, console: Console) -> None:
    """Prints the status as a person reads it."""
    table = Table(title="runs, newest first", title_justify="left")
    for column in ("run", "experiment", "state", "iterations", "success", "ending"):
        table.add_column(column)
    for run in status.runs:
        success = "" if run.success is None else f"{run.success:.2f}"
        table.add_row(run.name, run.experiment, run.state, str(run.iterations), success, run.ending)
    if status.runs:
        console.print(table)
    else:
        console.print("no runs yet: `starpo train` makes one")
    console.print(
        f"store {status.store}: {status.num_records} stage records, {status.num_objects} objects, "
        f"{status.num_bytes / 1024**2:.0f} MiB",
        soft_wrap=True,
    )
    if status.held_by:
        console.print(f"in use by {status.held_by}")
    console.print(f"Prefect: {status.prefect or 'not running (`starpo up` starts it)'}")
