"""Checkpoints of a sweep: its final policies in `checkpoints/`, which DVC pins."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.errors import ExperimentError
from flows.summary import Summary
from flows.sweep_result import load_result
from models.folder import OPTIMISER
from tasks.digest import digest_file


@dataclass(frozen=True)
class Checkpoint:
    """Where a pinned policy lies, and whose it is."""

    folder: Path
    sweep: str
    arm: str
    seed: int


def pin_policies(name: str, summaries: Mapping[str, Mapping[int, Summary]], folder: Path) -> None:
    """Copies the final policies to `folder/NAME/ARM/seed-N`, for DVC to keep; no optimiser state.

    Args:
        name: Of the sweep.
        summaries: Of its runs, by arm and seed.
        folder: Holds the checkpoints of all sweeps.
    """
    target = folder / name
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    for arm, runs in summaries.items():
        for seed, run in runs.items():
            pin_policy(Path(run.policy), target / _place(arm, seed))


def pin_policy(policy: Path, folder: Path) -> None:
    """Copies one policy without its optimiser state."""
    shutil.copytree(policy, folder, ignore=shutil.ignore_patterns(OPTIMISER.name))


def find_checkpoint(path: Path, *, root: Path) -> Checkpoint:
    """The checkpoint that a path below `root/checkpoints` belongs to, there or not.

    Raises:
        ExperimentError: No sweep with results has pinned it.
    """
    parts = path.relative_to(root / "checkpoints").parts
    if len(parts) >= 3:
        sweep, place = parts[0], Path(parts[1]) / parts[2]
        for arm, runs in load_result(root / "results", sweep).runs.items():
            for seed in runs:
                if _place(arm, seed) == place:
                    return Checkpoint(root / "checkpoints" / sweep / place, sweep, arm, seed)
    raise ExperimentError(
        f"`{path}` is no checkpoint of a sweep\nhint: they are `checkpoints/SWEEP/ARM/seed-N`"
    )


def is_same_policy(checkpoint: Path, policy: Path) -> bool:
    """Whether a checkpoint has exactly the files of the policy that it was copied from."""
    return _files(checkpoint) == _files(policy)


def _files(folder: Path) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): digest_file(file)
        for file in folder.rglob("*")
        if file.is_file() and file.name != OPTIMISER.name
    }


def _place(arm: str, seed: int) -> Path:
    return Path(arm.replace(" ", "_")) / f"seed-{seed}"
