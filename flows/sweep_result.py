"""What a sweep found: arms with intervals, comparisons with their reference arms, the verdict."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict

from flows.errors import ExperimentError
from flows.summary import Summary
from flows.sweep import Expectation, Sweep
from tasks.provenance import provenance
from tasks.statistics import Comparison, compare_arms, mean_interval, summarise_curve


class Verdict(StrEnum):
    """What became of the hypothesis."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    NOT_DISTINGUISHABLE = "not distinguishable"
    NOT_RUN = "not run"


class ArmRow(BaseModel):
    """One arm: its mean over seeds, and its difference from the reference arm.

    Attributes:
        reference: The arm that it is compared with.
        low: Lower end of the mean's 95 % interval over seeds; None when the seeds do not differ.
        peak: Highest point of the curve of held-out success, mean over seeds; so are area (mean
            height), and drop (from the peak to the end).
        collapsed: Runs whose success fell below half of its peak and stayed there.
        difference: None for a reference arm, and where no seed is shared.
        distinguishable: Whether the interval corrected for the number of arms leaves 0 out.
        detectable: Smallest difference that this many seeds would have told apart.
    """

    model_config = ConfigDict(frozen=True)

    arm: str
    reference: str
    seeds: int
    mean: float
    low: float | None
    high: float | None
    peak: float
    area: float
    drop: float
    collapsed: int
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None
    distinguishable: bool | None = None
    detectable: float | None = None

    @property
    def direction(self) -> int:
        """Where the arm lies, seen from its reference: 1, -1, or 0 when that cannot be told."""
        if not self.distinguishable or self.difference is None:
            return 0
        return 1 if self.difference > 0 else -1


class CurvePoint(BaseModel):
    """Held-out success at an iteration: mean over seeds with its 95 % interval."""

    model_config = ConfigDict(frozen=True)

    iteration: int
    mean: float
    low: float | None
    high: float | None


class RunLink(BaseModel):
    """A training run behind a result.

    Attributes:
        run: Digest of its experiment.
        policy: Digest of its final policy.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    policy: str


class SweepResult(BaseModel):
    """Everything that a sweep found; JSON-ready.

    Attributes:
        expected: By arm, where the hypothesis puts it.
        values: The compared number by arm and seed.
        curves: Held-out success by arm.
        runs: The training runs by arm and seed.
        failed: Why runs failed, by arm and seed in words.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    scale: str
    hypothesis: str
    published: str
    finding: int | None
    metric: str
    verdict: Verdict
    expected: dict[str, Expectation]
    arms: list[ArmRow]
    values: dict[str, dict[int, float]]
    curves: dict[str, list[CurvePoint]]
    runs: dict[str, dict[int, RunLink]]
    failed: dict[str, str]
    provenance: dict[str, Any]

    @property
    def detectable(self) -> float | None:
        """The smallest difference that every comparison would have told; None when one has none."""
        found = [row.detectable for row in self.arms if row.difference is not None]
        known = [value for value in found if value is not None]
        return max(known) if known and len(known) == len(found) else None


def judged(
    sweep: Sweep,
    summaries: Mapping[str, Mapping[int, Summary]],
    *,
    failed: Mapping[str, str],
) -> SweepResult:
    """Compares the arms of a sweep and judges its hypothesis.

    Args:
        sweep: The sweep.
        summaries: Of the finished runs, by arm and seed.
        failed: Why the others failed, by arm and seed in words.
    """
    settings = sweep.settings
    values = {
        arm: {seed: metric_of(run, settings.metric) for seed, run in runs.items()}
        for arm, runs in summaries.items()
    }
    references = {arm.name: arm.reference for arm in sweep.arms}
    compared = compare_arms(values, references=references)
    rows = [
        _row(arm, references[arm], list(summaries[arm].values()), list(numbers.values()))
        for arm, numbers in values.items()
    ]
    rows = [
        row.model_copy(update=_compared(compared[row.arm])) if row.arm in compared else row
        for row in rows
    ]
    return SweepResult(
        name=sweep.name,
        scale=sweep.scale,
        hypothesis=settings.hypothesis,
        published=settings.published,
        finding=settings.finding,
        metric=settings.metric,
        verdict=_verdict(rows, settings.expect),
        expected=settings.expect,
        arms=rows,
        values=values,
        curves={arm: mean_curve(list(runs.values())) for arm, runs in summaries.items()},
        runs={
            arm: {
                seed: RunLink(run=run.digest, policy=run.policy_digest)
                for seed, run in runs.items()
            }
            for arm, runs in summaries.items()
        },
        failed=dict(failed),
        provenance=dict(provenance()),
    )


def save_result(result: SweepResult, folder: Path) -> None:
    """Writes what was found for programs, byte for byte the same for the same result.

    `NAME.json` has everything, `NAME.metrics.json` the arms' means for DVC, `NAME.parquet` one row
    per arm and seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(result.model_dump(mode="json"), indent=1)
    result_path(folder, result.name).write_text(content + "\n")
    means = {row.arm: {"mean": row.mean, "difference": row.difference} for row in result.arms}
    metrics = json.dumps({"verdict": result.verdict, "arms": means}, indent=1, sort_keys=True)
    (folder / f"{result.name}.metrics.json").write_text(metrics + "\n")
    rows = [
        {"sweep": result.name, "scale": result.scale, "arm": arm, "seed": seed, "value": value}
        for arm, numbers in result.values.items()
        for seed, value in numbers.items()
    ]
    pl.DataFrame(rows).write_parquet(folder / f"{result.name}.parquet")


def load_result(folder: Path, name: str) -> SweepResult:
    """The last result of a sweep.

    Raises:
        ExperimentError: There is none.
    """
    path = result_path(folder, name)
    if not path.exists():
        raise ExperimentError(f"`{path}` is not there\nhint: `starpo sweep {name}` makes it")
    return SweepResult.model_validate_json(path.read_text())


def result_path(folder: Path, name: str) -> Path:
    """Where the result of a sweep lies, whole."""
    return folder / f"{name}.json"


def metric_of(run: Summary, metric: str) -> float:
    """A run's number: `curve/final`, `peak`, `area` or `drop`, or a metric's last value.

    Raises:
        ExperimentError: The run has no such metric.
    """
    prefix, _, name = metric.partition("/")
    numbers = asdict(summarise_curve(run.curve)) if prefix == "curve" else run.final
    if (name if prefix == "curve" else metric) not in numbers:
        raise ExperimentError(f"the run `{run.name}` has no metric `{metric}`")
    value: float = numbers[name if prefix == "curve" else metric]
    return value


def mean_curve(runs: Sequence[Summary]) -> list[CurvePoint]:
    """Mean over the runs at each iteration that all of them evaluated."""
    shared = sorted(set.intersection(*(set(run.curve) for run in runs)))
    points = []
    for iteration in shared:
        interval = mean_interval([run.curve[iteration] for run in runs])
        low, high = _finite(interval.low), _finite(interval.high)
        points.append(CurvePoint(iteration=iteration, mean=interval.mean, low=low, high=high))
    return points


def _row(arm: str, reference: str, runs: Sequence[Summary], numbers: Sequence[float]) -> ArmRow:
    interval = mean_interval(numbers)
    curves = [summarise_curve(run.curve) for run in runs]
    return ArmRow(
        arm=arm,
        reference=reference,
        seeds=len(runs),
        mean=interval.mean,
        low=_finite(interval.low),
        high=_finite(interval.high),
        peak=fmean(curve.peak for curve in curves),
        area=fmean(curve.area for curve in curves),
        drop=fmean(curve.drop for curve in curves),
        collapsed=sum(curve.collapse is not None for curve in curves),
    )


def _compared(found: Comparison) -> dict[str, Any]:
    return {
        "difference": found.difference.mean,
        "difference_low": _finite(found.corrected.low),
        "difference_high": _finite(found.corrected.high),
        "p_value": found.p_value,
        "distinguishable": found.is_distinguishable,
        "detectable": _finite(found.detectable),
    }


def _verdict(rows: list[ArmRow], expect: Mapping[str, Expectation]) -> Verdict:
    """Reproduced when every arm that the hypothesis speaks of lies where it says."""
    by_name = {row.arm: row for row in rows if row.difference is not None}
    if not expect or any(arm not in by_name for arm in expect):
        return Verdict.NOT_RUN
    agree = {
        by_name[arm].direction * (1 if way is Expectation.HIGHER else -1)
        for arm, way in expect.items()
    }
    if -1 in agree:
        return Verdict.CONTRADICTED
    return Verdict.REPRODUCED if agree == {1} else Verdict.NOT_DISTINGUISHABLE


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
