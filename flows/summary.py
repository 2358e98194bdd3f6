"""The result of a training run as a person reads it: before and after, times, where to look."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.experiment import Experiment
from flows.train import Outcome
from tasks.stage import Record, Runtime


class Row(BaseModel):
    """One line of the table, before and after training."""

    model_config = ConfigDict(frozen=True)

    name: str
    before: str
    after: str


class Summary(BaseModel):
    """What a run gave; JSON-ready, returned by the flow.

    Attributes:
        digest: Of the experiment.
        final: Every metric's last value.
        curve: Held-out success by iteration.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    digest: str
    rows: list[Row]
    ending: str
    reason: str
    num_executed: int
    num_reused: int
    wall_s: dict[str, float]
    total_s: float
    policy: str
    policy_digest: str
    report: str
    warnings: list[str]
    final: dict[str, float]
    curve: dict[int, float]


def summarise_run(
    experiment: Experiment, outcome: Outcome, *, runtime: Runtime, total_s: float
) -> Summary:
    """Collects the numbers of a finished run."""
    evaluations = outcome.evaluations
    before, after = evaluations[min(evaluations)], evaluations[max(evaluations)]
    store = runtime.store
    return Summary(
        name=experiment.name,
        digest=experiment.digest,
        rows=_rows(before, after),
        ending=outcome.ending.value,
        reason=outcome.reason,
        num_executed=len(runtime.executed),
        num_reused=len(runtime.reused),
        wall_s=runtime.wall_s,
        total_s=total_s,
        policy=str(store.path(outcome.policy)),
        policy_digest=outcome.policy.digest,
        report=str(store.path(outcome.report)) if outcome.report else "",
        warnings=outcome.warnings,
        final={name: value for row in outcome.history.values() for name, value in row.items()},
        curve={step: item.metrics["evaluate/success"] for step, item in evaluations.items()},
    )


def print_summary(summary: Summary, *, console: Console) -> None:
    """Prints the table, the times, the report's path and the commands that open the pages."""
    table = Table(title=f"{summary.name}: held-out episodes, 95 % intervals", title_justify="left")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for row in summary.rows:
        table.add_row(row.name, row.before, row.after)
    console.print(table)
    for warning in summary.warnings:
        console.print(f"[yellow]warning:[/yellow] {warning}")
    if summary.num_executed:
        times = Table(title="seconds by stage", title_justify="left")
        times.add_column("stage")
        times.add_column("seconds", justify="right")
        for name, seconds in summary.wall_s.items():
            times.add_row(name, f"{seconds:.1f}")
        times.add_row("whole run", f"{summary.total_s:.1f}", style="bold")
        console.print(times)
        console.print(f"{summary.num_executed} stages executed, {summary.num_reused} reused")
    else:
        console.print(
            f"nothing changed: no stage executed, all {summary.num_reused} reused "
            f"({summary.total_s:.1f} s)"
        )
    if summary.reason:
        console.print(f"{summary.ending}: {summary.reason}")
    console.print(f"policy  {_shown(summary.policy)}", soft_wrap=True)
    console.print(f"report  {_shown(summary.report)}", soft_wrap=True)
    console.print("open MLflow's page:   .venv/bin/starpo up mlflow", soft_wrap=True)
    console.print("open Prefect's page:  .venv/bin/starpo up prefect", soft_wrap=True)


def markdown(summary: Summary) -> str:
    """The same as Markdown, for Prefect's artifact."""
    lines = [f"# {summary.name}", "", "| | before | after |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.before} | {row.after} |" for row in summary.rows]
    lines += ["", f"{summary.ending} {summary.reason}", "", f"- policy `{summary.policy}`"]
    lines += [f"- report `{summary.report}`", f"- {summary.num_executed} stages executed"]
    return "\n".join(lines)


def _rows(before: Record, after: Record) -> list[Row]:
    rows = [_interval_row("success", "evaluate/success", before, after)]
    prefix, suffix = "evaluate/by/", "/success"
    kinds = [
        name.removeprefix(prefix).removesuffix(suffix)
        for name in after.metrics
        if name.startswith(prefix) and name.endswith(suffix)
    ]
    for kind in kinds:
        if f"{prefix}{kind}{suffix}" in before.metrics:
            rows.append(_interval_row(f"  {kind}", f"{prefix}{kind}", before, after))
    for label, name, form in (
        ("return", "return", "{:.2f}"),
        ("valid turns", "valid_turns", "{:.3f}"),
        ("reply length (tokens)", "reply_tokens", "{:.1f}"),
        ("actions per episode", "actions", "{:.1f}"),
    ):
        values = [form.format(record.metrics[f"evaluate/{name}"]) for record in (before, after)]
        rows.append(Row(name=label, before=values[0], after=values[1]))
    return rows


def _interval_row(label: str, name: str, before: Record, after: Record) -> Row:
    texts = []
    for metrics in (before.metrics, after.metrics):
        if f"{name}_low" in metrics:
            rate, low, high = metrics[name], metrics[f"{name}_low"], metrics[f"{name}_high"]
        else:
            rate, low, high = (metrics[f"{name}/{part}"] for part in ("success", "low", "high"))
        texts.append(f"{rate:.2f} [{low:.2f}, {high:.2f}]")
    return Row(name=label, before=texts[0], after=texts[1])


def _shown(path: str) -> str:
    """A path relative to where the person is, when it is below."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
