"""Checkpoints of a sweep: its final policies in `checkpoints/`, which DVC pins."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from flows.summary import Summary
from models.folder import OPTIMISER


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
            place = target / arm.replace(" ", "_") / f"seed-{seed}"
            shutil.copytree(run.policy, place, ignore=shutil.ignore_patterns(OPTIMISER.name))
