"""Runs: which stages an experiment called, so that its shards can be asked again later.

One small JSON file per experiment in `.starpo/runs`, rewritten after every iteration.
"""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.errors import SettingsError
from tasks.stage import Record
from tasks.store import Store

LAST = "last"


class Run(BaseModel):
    """The stages of an experiment, in the order of their calls.

    Attributes:
        digest: Identity of the experiment.
        name: Its name.
        experiment: Every setting.
        ending: `running` until it ended.
        reason: Why it ended early.
        stages: Label and address of each call.
        wall_s: Seconds that its executed stages took; for estimates.
    """

    model_config = ConfigDict(frozen=True)

    digest: str
    name: str
    experiment: dict[str, Any]
    ending: str
    reason: str = ""
    stages: list[tuple[str, str]]
    wall_s: float = 0.0


def _file(root: Path, digest: str) -> Path:
    return root / ".starpo" / "runs" / f"{digest[:16]}.json"


def write_run(root: Path, run: Run) -> None:
    """Writes a run's file, whole or not at all."""
    target = _file(root, run.digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(run.model_dump(mode="json"), sort_keys=True) + "\n")
    temporary.replace(target)


def read_run(root: Path, digest: str) -> Run | None:
    """The run of an experiment's digest; None when it never started."""
    try:
        return Run.model_validate_json(_file(root, digest).read_text())
    except FileNotFoundError:
        return None


def remove_run(root: Path, run: Run) -> None:
    """Forgets a run; its stages stay where they are."""
    _file(root, run.digest).unlink()


def known_runs(root: Path) -> dict[str, Run]:
    """All runs by the digest of their experiment."""
    files = (root / ".starpo" / "runs").glob("*.json")
    runs = [Run.model_validate_json(path.read_text()) for path in sorted(files)]
    return {run.digest: run for run in runs}


def find_run(root: Path, name: str) -> Run:
    """A run by the beginning of its digest, or the last one written (`last`).

    Raises:
        SettingsError: There is none, or more than one.
    """
    files = sorted(
        (root / ".starpo" / "runs").glob("*.json"), key=lambda path: path.stat().st_mtime
    )
    chosen = files[-1:] if name == LAST else [path for path in files if path.stem.startswith(name)]
    if len(chosen) != 1:
        known = ", ".join(path.stem for path in files[-5:]) or "none yet"
        raise SettingsError(
            f"{len(chosen)} runs are named `{name}`\n"
            f"hint: write `last`, or the beginning of one of the last ones: {known}"
        )
    return Run.model_validate_json(chosen[0].read_text())


def records_of(run: Run, store: Store, *, stage: str | None = None) -> list[Record]:
    """Records of a run's stages, in order.

    Args:
        run: The run.
        store: Where it ran.
        stage: Only those of this stage.

    Raises:
        SettingsError: The store has lost one.
    """
    records = []
    for label, address in run.stages:
        if stage is not None and label.split()[0] != stage:
            continue
        found = store.read_record(address)
        if found is None:
            raise SettingsError(
                f"the store has no `{label}` of this run any more\nhint: run the experiment again"
            )
        records.append(Record.model_validate(found))
    return records
