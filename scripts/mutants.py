"""Plants small faults in the code, one at a time, and checks that a test catches each.

The faults are listed in `mutants.yaml`: a text that occurs once in a file, what replaces it, and
the tests that must then fail. Prints what was caught; exits with 1 below 95 %.

    python scripts/mutants.py --only temperature
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
COPIED = (
    *("flows", "tasks", "envs", "models", "tests", "scripts", "docs"),
    *("pyproject.toml", "params.yaml", "prefect.yaml"),
)
REFERENCE = ROOT.parent / "shared"
TARGET = 0.95
console = Console()


class Mutant(BaseModel):
    """One planted fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


class Result(BaseModel):
    """Whether the tests caught a fault."""

    mutant: Mutant
    caught: bool
    seconds: float


def load_mutants(only: str) -> list[Mutant]:
    """The listed faults whose name contains a text.

    Raises:
        SystemExit: A text to replace does not occur exactly once in its file.
    """
    listed = yaml.safe_load((ROOT / "scripts" / "mutants.yaml").read_text())
    mutants = [Mutant.model_validate(item) for item in listed]
    for mutant in mutants:
        count = (ROOT / mutant.file).read_text().count(mutant.old)
        if count != 1:
            raise SystemExit(f"`{mutant.name}`: its text occurs {count} times in {mutant.file}")
    return [mutant for mutant in mutants if only in mutant.name]


def copy_project(place: Path) -> Path:
    """A copy of the project's code and tests, with the reference numbers beside it."""
    copy = place / "project"
    copy.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
            shutil.copytree(source, copy / name, ignore=ignored)
        else:
            shutil.copy(source, copy / name)
    if REFERENCE.is_dir():
        (place / "shared").symlink_to(REFERENCE)
    return copy


def run_tests(copy: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs tests in a copy of the project, to the first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


def try_mutant(mutant: Mutant, copies: "queue.Queue[Path]") -> Result:
    """Plants a fault in a free copy, runs its tests and mends it again."""
    copy = copies.get()
    path = copy / mutant.file
    right = path.read_text()
    started = time.monotonic()
    try:
        path.write_text(right.replace(mutant.old, mutant.new))
        failed = run_tests(copy, mutant.tests).returncode == 1  # 1: tests ran, and some failed
    finally:
        path.write_text(right)
        copies.put(copy)
    return Result(mutant=mutant, caught=failed, seconds=time.monotonic() - started)


def main() -> int:
    """Runs the suite.

    Returns:
        0 when at least 95 % of the faults are caught.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name contains this text")
    parser.add_argument("--workers", type=int, default=2, help="faults tried at the same time")
    arguments = parser.parse_args()
    mutants = load_mutants(arguments.only)
    copies: queue.Queue[Path] = queue.Queue()
    with tempfile.TemporaryDirectory(prefix="starpo-mutants-") as folder:
        for worker in range(arguments.workers):
            copies.put(copy_project(Path(folder) / str(worker)))
        right = copies.get()
        done = run_tests(right, sorted({test for mutant in mutants for test in mutant.tests}))
        copies.put(right)
        if done.returncode:
            console.print(done.stdout[-3000:], markup=False)
            raise SystemExit("the tests fail without any fault")
        with ThreadPoolExecutor(arguments.workers) as pool:
            jobs = pool.map(lambda mutant: try_mutant(mutant, copies), mutants)
            results = list(track(jobs, total=len(mutants), description="faults", console=console))
    table = Table(
        "fault", "file", "caught", "seconds", title="planted faults", title_justify="left"
    )
    for result in results:
        said = "yes" if result.caught else "[red]SURVIVED[/red]"
        table.add_row(result.mutant.name, result.mutant.file, said, f"{result.seconds:.0f}")
    console.print(table)
    share = sum(result.caught for result in results) / max(len(results), 1)
    console.print(f"{len(results)} faults, {share:.1%} caught (target {TARGET:.0%})")
    return 0 if share >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
