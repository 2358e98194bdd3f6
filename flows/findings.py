"""The published findings, and what became of each in this checkout's sweeps."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.sweep import load_definition, published_findings, sweep_names
from flows.sweep_result import Verdict


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
    tested = {load_definition(name).finding: name for name in sweep_names()}
    rows = []
    for number, text in published_findings().items():
        path = folder / f"{tested.get(number, '')}.json"
        run = number in tested and path.exists()
        verdict = Verdict(json.loads(path.read_text())["verdict"]) if run else Verdict.NOT_RUN
        sweep = tested.get(number, "")
        rows.append(FindingRow(number=number, finding=text, sweep=sweep, verdict=verdict))
    return rows


def write_findings(rows: list[FindingRow], folder: Path) -> None:
    """Writes `README.md`: the findings with links to the reports of their sweeps."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Published findings, tried here",
        "",
        "Written by `starpo findings --write` from the results beside it. A verdict is about the "
        "scale that its report names.",
        "",
        "| | finding | verdict | report |",
        "|---|---|---|---|",
    ]
    for row in rows:
        report = folder / f"{row.sweep}.md"
        link = f"[{row.sweep}]({row.sweep}.md)" if report.exists() else row.sweep or "no sweep"
        lines.append(f"| {row.number} | {row.finding} | {row.verdict} | {link} |")
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def print_findings(rows: list[FindingRow], *, console: Console) -> None:
    """Prints the findings as one table."""
    table = Table(title="published findings", title_justify="left")
    for name in ("", "finding", "sweep", "verdict"):
        table.add_column(name)
    for row in rows:
        table.add_row(str(row.number), row.finding, row.sweep or "none yet", row.verdict)
    console.print(table)
