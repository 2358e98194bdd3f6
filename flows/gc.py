"""`starpo gc`: removes from the store what no run, result or MLflow run refers to."""

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from flows.sweep_result import SweepResult
from tasks.garbage import Garbage, find_garbage, remove
from tasks.runs import Run, known_runs, remove_run
from tasks.store import Store
from tasks.tracking import tracked_digests


class Collected(BaseModel):
    """What was removed, or would be; JSON-ready.

    Attributes:
        runs: Names of runs that nothing refers to any more.
        num_records: Stage records.
        num_objects: Files and folders.
        num_bytes: Of those.
        kept_runs: Number of runs that are referred to.
    """

    model_config = ConfigDict(frozen=True)

    runs: list[str]
    num_records: int
    num_objects: int
    num_bytes: int
    kept_runs: int


def collect_garbage(root: Path, store: Store, *, dry_run: bool) -> Collected:
    """Removes what nothing refers to.

    A run is referred to by MLflow, until it is deleted there; by a result in `results/`, which DVC
    keeps; or because it has not ended. What a run refers to is all that its stages read and wrote.

    Args:
        root: Holds `.starpo`, `mlruns` and `results`.
        store: Its store.
        dry_run: Only look.

    Raises:
        StoreBusyError: A running command writes to the store.
    """
    with store.writer(purpose="gc"):
        runs = known_runs(root)
        named = _named_by_results(root / "results")
        tracked = tracked_digests(root)
        kept = {
            digest: run
            for digest, run in runs.items()
            if run.ending == "running" or digest in named or digest in tracked
        }
        garbage = find_garbage(store, addresses=_addresses(kept.values()), digests=named | tracked)
        dropped = [run for digest, run in runs.items() if digest not in kept]
        if not dry_run:
            for run in dropped:
                remove_run(root, run)
            remove(store, garbage)
        return _report(dropped, garbage, num_kept=len(kept))


def _named_by_results(folder: Path) -> set[str]:
    """Digests of the runs and policies behind the results."""
    found: set[str] = set()
    for path in sorted(folder.glob("*.json")):
        if not path.name.endswith(".metrics.json"):
            result = SweepResult.model_validate_json(path.read_text())
            links = [link for runs in result.runs.values() for link in runs.values()]
            found |= {digest for link in links for digest in (link.run, link.policy)}
    return found


def _addresses(runs: Iterable[Run]) -> set[str]:
    return {address for run in runs for _, address in run.stages}


def _report(dropped: list[Run], garbage: Garbage, *, num_kept: int) -> Collected:
    return Collected(
        runs=[run.name for run in dropped],
        num_records=len(garbage.records),
        num_objects=len(garbage.objects),
        num_bytes=garbage.num_bytes,
        kept_runs=num_kept,
    )
