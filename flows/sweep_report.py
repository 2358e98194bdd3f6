"""A sweep's result for people: a page, Markdown, a figure, a table in the terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from flows.sweep_result import ArmRow, CurvePoint, SweepResult
from tasks.charts import Bar, Curve, Point, interval_chart, line_chart, sheet
from tasks.pages import flatten, render

HEADER = ("arm", "seeds", "mean", "difference", "p (Holm)", "detectable", "peak", "area", "drop")


def write_report(result: SweepResult, folder: Path) -> None:
    """Writes `NAME.html`, `NAME.md` and `NAME.svg`; the same result gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in rendered(result).items():
        (folder / f"{result.name}{suffix}").write_text(text)


def rendered(result: SweepResult) -> dict[str, str]:
    """The files of a report by suffix."""
    return {
        ".html": render("sweep.html", page_of(result)),
        ".md": markdown(result) + "\n",
        ".svg": sheet(_charts(result), label=result.hypothesis),
    }


def report_path(folder: Path, name: str) -> Path:
    """Where the page of a sweep lies."""
    return folder / f"{name}.html"


def page_of(result: SweepResult) -> dict[str, Any]:
    """Everything that the page shows."""
    return {
        "name": result.name,
        "scale": result.scale,
        "finding": result.finding,
        "hypothesis": result.hypothesis,
        "verdict": result.verdict.value,
        "reach": _reach(result),
        "measured": _measured(result),
        "published": result.published,
        "failed": [f"{name}: {why}" for name, why in result.failed.items()],
        "header": HEADER,
        "rows": [cells(row) for row in result.arms],
        "charts": [(caption, Markup(svg)) for caption, svg in _charts(result)],  # noqa: S704 - our own SVG, texts escaped
        "legend": any(row.reference != row.arm for row in result.arms),
        "command": command_of(result),
        "provenance": flatten(result.provenance),
        "seeds": [
            (arm, [f"{seed}: {value:.3f}" for seed, value in numbers.items()])
            for arm, numbers in result.values.items()
        ],
    }


def markdown(result: SweepResult) -> str:
    """The result as Markdown."""
    lines = [
        f"# {result.name} ({result.scale})",
        "",
        f"{result.hypothesis} **{result.verdict.capitalize()}.** {_reach(result)}",
        "",
        _measured(result),
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{'|'.join('---' for _ in HEADER)}|",
        *(f"| {' | '.join(cells(row))} |" for row in result.arms),
    ]
    if result.published:
        lines += ["", f"Published: {result.published}"]
    if result.failed:
        lines += ["", "Failed:", *(f"- {name}: {why}" for name, why in result.failed.items())]
    facts = result.provenance
    changed = " (changed)" if facts["dirty"] else ""
    lines += [
        "",
        f"`{command_of(result)}` at commit {facts['commit']}{changed}, {facts['machine']}.",
    ]
    return "\n".join(lines)


def print_result(result: SweepResult, *, console: Console) -> None:
    """Prints the result as a table."""
    table = Table(title=f"{result.name} ({result.scale})", title_justify="left")
    for name in HEADER[:6]:
        table.add_column(name)
    for row in result.arms:
        table.add_row(*cells(row)[:6])
    console.print(table)
    console.print(f"{result.hypothesis} [bold]{result.verdict}[/bold]. {_reach(result)}")
    for name, why in result.failed.items():
        console.print(f"[red]failed[/red] {name}: {why}", soft_wrap=True)


def cells(row: ArmRow) -> list[str]:
    """The texts of an arm's line."""
    difference = p_value = detectable = ""
    if row.arm == row.reference:
        difference = "reference"
    elif row.difference is None:
        difference = "not compared"
    else:
        difference = f"{row.difference:+.3f} {_interval(row.difference_low, row.difference_high)}"
        difference += "" if row.distinguishable else " not distinguishable"
        p_value = f"{row.p_value:.3f}"
        detectable = "" if row.detectable is None else f"{row.detectable:.3f}"
    mean = f"{row.mean:.3f} {_interval(row.low, row.high)}"
    numbers = [f"{row.peak:.3f}", f"{row.area:.3f}", f"{row.drop:.3f}"]
    return [row.arm, str(row.seeds), mean, difference, p_value, detectable, *numbers]


def _measured(result: SweepResult) -> str:
    return (
        f"Compared is `{result.metric}`. Means over seeds with 95 % intervals (Student); "
        "differences are paired by seed, their intervals corrected for the number of comparisons "
        "(Holm). Peak, area and drop are of the curve of held-out success."
    )


def _reach(result: SweepResult) -> str:
    seeds = max((row.seeds for row in result.arms), default=0)
    if result.detectable is None:
        return f"{seeds} seeds an arm: too few, or too alike, for an interval of every comparison."
    return (
        f"{seeds} seeds an arm: a difference of {result.detectable:.3f} would have been told from "
        "0 in every comparison in four of five such studies."
    )


def command_of(result: SweepResult) -> str:
    """The command that makes this result."""
    scale = "" if result.scale == "nano" else f" --scale {result.scale}"
    seeds = max((row.seeds for row in result.arms), default=0)
    return f"starpo sweep {result.name}{scale} --seeds {seeds}"


def _charts(result: SweepResult) -> list[tuple[str, str]]:
    """Caption and drawing: all arms by mean, then each arm's curve beside its reference's."""
    metric = result.metric
    bars = [
        Bar(row.arm, row.mean, row.low, row.high, "second" if row.arm == row.reference else "main")
        for row in result.arms
    ]
    charts = [(f"{metric}, mean over seeds", interval_chart(bars, label=metric))] if bars else []
    for row in result.arms:
        if row.arm == row.reference or row.reference not in result.curves:
            continue
        curves = [
            _curve(name, result.curves, role)
            for name, role in ((row.reference, "second"), (row.arm, "main"))
        ]
        caption = f"{row.arm} against {row.reference}: held-out success by iteration"
        charts.append((caption, line_chart(curves, label=caption)))
    return charts


def _curve(name: str, curves: Mapping[str, list[CurvePoint]], role: str) -> Curve:
    points = [
        Point(x=point.iteration, y=point.mean, low=point.low, high=point.high)
        for point in curves[name]
    ]
    return Curve(name=name, points=points, role=role, dots=True)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
