"""What a sweep found: arms with intervals, comparisons, the verdict; as Markdown, JSON, Parquet."""

import json
import math
import shutil
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.summary import Summary
from flows.sweep import Expectation, Sweep, load_sweep, published_findings, sweep_names
from models.folder import OPTIMISER
from tasks.provenance import provenance
from tasks.statistics import compare_arms, mean_interval, summarise_curve


class Verdict(StrEnum):
    """What became of the hypothesis."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    NOT_DISTINGUISHABLE = "not distinguishable"
    NOT_RUN = "not run"


class ArmRow(BaseModel):
    """One arm: its mean over seeds, and its difference from the reference arm.

    Attributes:
        low: Lower end of the mean's 95 % interval over seeds; None for a single seed.
        difference: None for the reference arm, and where no seed is shared.
        distinguishable: Whether the interval corrected for the number of arms leaves 0 out.
    """

    model_config = ConfigDict(frozen=True)

    arm: str
    seeds: int
    mean: float
    low: float | None
    high: float | None
    peak: float
    area: float
    collapse: float | None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None
    distinguishable: bool | None = None


class SweepResult(BaseModel):
    """Everything that a sweep found; JSON-ready."""

    model_config = ConfigDict(frozen=True)

    name: str
    scale: str
    hypothesis: str
    published: str
    metric: str
    reference: str
    verdict: Verdict
    arms: list[ArmRow]
    values: dict[str, dict[int, float]]
    failed: dict[str, str]
    provenance: dict[str, Any]


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
        arm: {seed: run.final[settings.metric] for seed, run in runs.items()}
        for arm, runs in summaries.items()
    }
    has_reference = settings.reference in values
    compared = compare_arms(values, reference=settings.reference) if has_reference else {}
    rows = []
    for arm, numbers in values.items():
        interval = mean_interval(list(numbers.values()))
        curves = [summarise_curve(run.curve) for run in summaries[arm].values()]
        collapses = [curve.collapse for curve in curves if curve.collapse is not None]
        row: dict[str, Any] = {
            "arm": arm,
            "seeds": len(numbers),
            "mean": interval.mean,
            "low": _finite(interval.low),
            "high": _finite(interval.high),
            "peak": sum(curve.peak for curve in curves) / len(curves),
            "area": sum(curve.area for curve in curves) / len(curves),
            "collapse": sum(collapses) / len(collapses) if collapses else None,
        }
        if arm in compared:
            found = compared[arm]
            row |= {
                "difference": found.difference.mean,
                "difference_low": _finite(found.corrected.low),
                "difference_high": _finite(found.corrected.high),
                "p_value": found.p_value,
                "distinguishable": found.is_distinguishable,
            }
        rows.append(ArmRow(**row))
    return SweepResult(
        name=sweep.name,
        scale=sweep.scale,
        hypothesis=settings.hypothesis,
        published=settings.published,
        metric=settings.metric,
        reference=settings.reference,
        verdict=_verdict(rows, settings.expect),
        arms=rows,
        values=values,
        failed=dict(failed),
        provenance=dict(provenance()),
    )


def _verdict(rows: list[ArmRow], expect: Mapping[str, Expectation]) -> Verdict:
    """Reproduced when every arm that the hypothesis speaks of lies where it says."""
    by_name = {row.arm: row for row in rows if row.difference is not None}
    if not expect or any(arm not in by_name for arm in expect):
        return Verdict.NOT_RUN
    signs = {arm: _sign(by_name[arm]) for arm in expect}
    wanted = {arm: 1 if way is Expectation.HIGHER else -1 for arm, way in expect.items()}
    if any(signs[arm] == -wanted[arm] for arm in expect):
        return Verdict.CONTRADICTED
    if all(signs[arm] == wanted[arm] for arm in expect):
        return Verdict.REPRODUCED
    return Verdict.NOT_DISTINGUISHABLE


def _sign(row: ArmRow) -> int:
    """Where the arm lies, seen from the reference arm; 0 when that cannot be told."""
    if not row.distinguishable or row.difference is None:
        return 0
    return 1 if row.difference > 0 else -1


def write_results(result: SweepResult, folder: Path) -> None:
    """Writes what was found for people and programs.

    `NAME.md` to read, `NAME.json` with everything, `NAME.metrics.json` with the arms' means for
    DVC, `NAME.parquet` with one row per arm and seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.name}.md").write_text(markdown(result) + "\n")
    content = json.dumps(result.model_dump(mode="json"), indent=1, sort_keys=True)
    (folder / f"{result.name}.json").write_text(content + "\n")
    means = {row.arm: {"mean": row.mean, "difference": row.difference} for row in result.arms}
    metrics = json.dumps({"verdict": result.verdict, "arms": means}, indent=1, sort_keys=True)
    (folder / f"{result.name}.metrics.json").write_text(metrics + "\n")
    rows = [
        {"sweep": result.name, "scale": result.scale, "arm": arm, "seed": seed, "value": value}
        for arm, numbers in result.values.items()
        for seed, value in numbers.items()
    ]
    pl.DataFrame(rows).write_parquet(folder / f"{result.name}.parquet")


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


class FindingRow(BaseModel):
    """One published finding and what became of it here."""

    model_config = ConfigDict(frozen=True)

    number: int
    finding: str
    sweep: str
    verdict: Verdict


def judged_findings(folder: Path) -> list[FindingRow]:
    """Every published finding with the verdict of its sweep's last results.

    Args:
        folder: Holds the results of the sweeps.
    """
    tested = {}
    for name in sweep_names():
        number = load_sweep(name).settings.finding
        if number is not None:
            tested[number] = name
    rows = []
    for number, text in published_findings().items():
        path = folder / f"{tested.get(number, '')}.json"
        run = number in tested and path.exists()
        verdict = Verdict(json.loads(path.read_text())["verdict"]) if run else Verdict.NOT_RUN
        sweep = tested.get(number, "")
        rows.append(FindingRow(number=number, finding=text, sweep=sweep, verdict=verdict))
    return rows


def print_findings(rows: list[FindingRow], *, console: Console) -> None:
    """Prints the findings as one table."""
    table = Table(title="published findings", title_justify="left")
    for name in ("", "finding", "sweep", "verdict"):
        table.add_column(name)
    for row in rows:
        table.add_row(str(row.number), row.finding, row.sweep or "none yet", row.verdict)
    console.print(table)


HEADER = ("arm", "seeds", "mean", "difference", "p (Holm)", "peak", "area", "collapse")


def cells(row: ArmRow, *, reference: str) -> list[str]:
    """The texts of an arm's line."""
    difference, p_value = "not compared", ""
    if row.arm == reference:
        difference = "reference"
    elif row.difference is not None:
        difference = f"{row.difference:+.3f} {_interval(row.difference_low, row.difference_high)}"
        difference += "" if row.distinguishable else " not distinguishable"
        p_value = f"{row.p_value:.3f}"
    collapse = "none" if row.collapse is None else f"{row.collapse:.0f}"
    mean = f"{row.mean:.3f} {_interval(row.low, row.high)}"
    numbers = [f"{row.peak:.3f}", f"{row.area:.3f}", collapse]
    return [row.arm, str(row.seeds), mean, difference, p_value, *numbers]


def markdown(result: SweepResult) -> str:
    """The result as Markdown."""
    rule = "|".join("---" for _ in HEADER)
    lines = [
        f"# {result.name} ({result.scale})",
        "",
        f"{result.hypothesis} **{result.verdict.capitalize()}.**",
        "",
        f"`{result.metric}` at the end of training. Means over seeds with 95 % intervals (Student);"
        " differences are paired by seed, their intervals corrected for the number of arms (Holm).",
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{rule}|",
    ]
    for row in result.arms:
        lines.append(f"| {' | '.join(cells(row, reference=result.reference))} |")
    if result.published:
        lines += ["", f"Published: {result.published}"]
    if result.failed:
        lines += ["", "Failed:", *(f"- {name}: {why}" for name, why in result.failed.items())]
    facts = result.provenance
    lines += ["", f"Commit {facts['commit']}{' (changed)' if facts.get('dirty') else ''}."]
    return "\n".join(lines)


def print_result(result: SweepResult, *, console: Console) -> None:
    """Prints the result as a table."""
    table = Table(title=f"{result.name} ({result.scale})", title_justify="left")
    for name in HEADER:
        table.add_column(name)
    for row in result.arms:
        table.add_row(*cells(row, reference=result.reference))
    console.print(table)
    console.print(f"{result.hypothesis} [bold]{result.verdict}[/bold]")
    for name, why in result.failed.items():
        console.print(f"[red]failed[/red] {name}: {why}", soft_wrap=True)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
