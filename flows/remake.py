"""`starpo rebuild`: makes a stored file, a checkpoint or a report again, bit for bit."""

import shutil
from pathlib import Path

from flows.checkpoints import find_checkpoint, pin_policy
from flows.errors import ExperimentError
from flows.explain import find_record, result_state, sweep_of
from flows.sweep_report import write_report
from flows.sweep_result import load_result, result_path
from tasks.lanes import Lanes
from tasks.lineage import FileState
from tasks.rebuild import rebuild
from tasks.stage import Runtime
from tasks.store import Reference, Store

TABLES = frozenset({".json", ".parquet"})


def is_table(path: Path, *, root: Path) -> bool:
    """Whether a file is a sweep's table: made from its runs, not from another result."""
    return path.absolute().parent == root / "results" and path.suffix in TABLES


def remake(path: Path, *, root: Path, store: Store, workers: int) -> list[str]:
    """Makes a file again.

    Args:
        path: A file of the store or a copy of one, a checkpoint, or a sweep's page or figure.
        root: Holds `results` and `checkpoints`.
        store: Where its stages ran.
        workers: Processes that compute lanes.

    Returns:
        Labels of the stages that ran.

    Raises:
        ExperimentError: Nobody knows who made it, or what it is made from was changed.
        RebuildError: The code has changed, or it comes out different.
    """
    path = path.absolute()
    if path.parent == root / "results":
        table = result_path(path.parent, sweep_of(path))
        if result_state(table, root=root) is FileState.CHANGED:
            raise ExperimentError(
                f"`{table}` is not as dvc.lock has it, so what is drawn from it would be wrong\n"
                f"hint: `starpo rebuild {table}` first"
            )
        write_report(load_result(path.parent, sweep_of(path)), path.parent)
        return []
    with store.writer(purpose=f"rebuilding {path}"), Lanes(workers=workers) as lanes:
        runtime = Runtime(store=store, lanes=lanes)
        if not path.is_relative_to(root / "checkpoints"):
            return _make(path, runtime)
        place = find_checkpoint(path, root=root)
        link = load_result(root / "results", place.sweep).runs[place.arm][place.seed]
        reference = Reference(digest=link.policy)
        policy = store.path(reference)
        ran = [] if store.is_intact(reference) else _make(policy, runtime)
        shutil.rmtree(place.folder, ignore_errors=True)
        pin_policy(policy, place.folder)
        return ran


def _make(path: Path, runtime: Runtime) -> list[str]:
    record, _ = find_record(path, store=runtime.store)
    return [item.label for item in rebuild(runtime, record)]
