"""Kills a training run, or a sweep, with SIGKILL at random moments; the result must not change.

Runs a small one once without interruption, then once with kills, each time continuing with the same
command, and compares everything that is kept: of a training run the final policy, every stage's
outputs and the ids of all episodes, of a sweep every byte of its results; of both MLflow's runs and
steps. Nothing may be lost, repeated, or left behind.

    python scripts/kill_test.py --kills 10
    python scripts/kill_test.py --kills 10 --sweep smoke
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from flows.processes import processes_of
from tasks.digest import digest_path
from tasks.tracking import open_client

Found = dict[str, object]
"""What a command printed."""
Rows = dict[str, tuple[bool, str]]
"""For each thing compared, whether it holds and what was found."""

OVERRIDES = [
    "train.iterations=6",
    "train.evaluate_every=3",
    "train.diagnose_every=2",
    "rollout.groups=8",
    "warmstart.episodes=640",
    "evaluate.instances=32",
]
ORPHAN_PATIENCE_S = 15.0
console = Console()


def command(sweep: str | None) -> list[str]:
    """The command of a training run, or of a sweep."""
    arguments = ["sweep", sweep, "--place", "processes"] if sweep else ["train", *OVERRIDES]
    return [str(Path(sys.executable).parent / "starpo"), *arguments, "--json"]


def environment(home: Path) -> dict[str, str]:
    """This process's environment with a home of its own."""
    return {**os.environ, "STARPO_HOME": str(home)}


def run_to_end(home: Path, command: list[str]) -> tuple[Found, float]:
    """Runs the command to its end.

    Returns:
        The run's summary and the seconds that it took.
    """
    started = time.monotonic()
    done = subprocess.run(
        command, env=environment(home), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the command failed:\n{done.stdout}\n{done.stderr}")
    summary: Found = json.loads(done.stdout)
    return summary, time.monotonic() - started


def run_and_kill(home: Path, command: list[str], after_s: float) -> bool:
    """Runs the command and kills it with SIGKILL.

    Returns:
        Whether it was still running when the time came.
    """
    process = subprocess.Popen(
        command,
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


def await_no_orphans(home: Path) -> list[int]:
    """Processes that outlive a killed command for longer than a moment."""
    deadline = time.monotonic() + ORPHAN_PATIENCE_S
    while (left := processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def stage_outputs(home: Path) -> dict[str, dict[str, str]]:
    """Digests of every stage's outputs by the stage's label."""
    records = (home / ".starpo" / "store" / "records").rglob("*.json")
    loaded = [json.loads(path.read_text()) for path in records]
    return {
        record["label"]: {name: item["digest"] for name, item in record["outputs"].items()}
        for record in loaded
        if record["label"] != "report"
    }


def episodes(home: Path) -> Counter[str]:
    """How often each training episode is in the stored rollouts."""
    store = home / ".starpo" / "store"
    ids: Counter[str] = Counter()
    for path in (store / "records").rglob("*.json"):
        record = json.loads(path.read_text())
        if record["stage"] == "rollout":
            digest = record["outputs"]["trajectories"]["digest"]
            shard = store / "objects" / digest[:2] / f"{digest}.parquet"
            ids.update(pl.read_parquet(shard, columns=["episode"])["episode"].to_list())
    return ids


def tracked(home: Path) -> tuple[int, list[str], int]:
    """Number of MLflow runs, their states, and how many steps were logged more than once."""
    client = open_client(home)
    experiments = [item.experiment_id for item in client.search_experiments()]
    runs = client.search_runs(experiments)
    history = [
        (run.info.run_id, metric.step)
        for run in runs
        for metric in client.get_metric_history(run.info.run_id, "update/steps")
    ]
    return len(runs), [run.info.status for run in runs], len(history) - len(set(history))


def same_training(home: Path, whole: Path, expected: Found, found: Found) -> Rows:
    """Compares a killed training run with the uninterrupted one."""
    ids, expected_ids = episodes(home), episodes(whole)
    outputs, expected_outputs = stage_outputs(home), stage_outputs(whole)
    changed = [label for label in expected_outputs if outputs.get(label) != expected_outputs[label]]
    runs, states, _ = tracked(home)
    return {
        "final policy": (found["policy_digest"] == expected["policy_digest"], "digest"),
        "stages with other outputs": (not changed, str(len(changed))),
        "episodes lost": (not expected_ids - ids, str(len(expected_ids - ids))),
        "episodes repeated": (not ids - expected_ids, str(len(ids - expected_ids))),
        "MLflow runs": (runs == 1 and states == ["FINISHED"], f"{runs} {states}"),
    }


def same_sweep(home: Path, whole: Path) -> Rows:
    """Compares a killed sweep with the uninterrupted one."""
    expected, found = (
        {file.name: file.read_bytes() for file in (place / "results").iterdir()}
        for place in (whole, home)
    )
    changed = [name for name, content in expected.items() if found.get(name) != content]
    pinned, expected_pins = (digest_path(place / "checkpoints") for place in (home, whole))
    (runs, states, _), (expected_runs, _, _) = tracked(home), tracked(whole)
    unfinished = [state for state in states if state != "FINISHED"]
    return {
        "files of the result": (len(found) == len(expected), str(len(found))),
        "of them with other bytes": (not changed, str(changed or 0)),
        "checkpoints": (pinned == expected_pins, "digest"),
        "MLflow runs": (runs == expected_runs and not unfinished, f"{runs} {unfinished}"),
    }


def differences(home: Path, whole: Path, *, sweep: str | None, expected: Found) -> Rows:
    """Runs the command to its end once more and compares what it left with the uninterrupted run.

    Args:
        home: Of the killed run.
        whole: Of the uninterrupted run.
        sweep: Its name; None for a training run.
        expected: What the uninterrupted run printed.

    Returns:
        For each thing compared, whether it holds and what was found.
    """
    found, _ = run_to_end(home, command(sweep))
    rows = same_sweep(home, whole) if sweep else same_training(home, whole, expected, found)
    stray = list((home / ".starpo" / "store").glob("tmp/*"))
    *_, repeated = tracked(home)
    return {
        **rows,
        "work in progress left": (not stray, str(len(stray))),
        "MLflow steps repeated": (repeated == 0, str(repeated)),
    }


def main() -> int:
    """Runs the test.

    Returns:
        0 when nothing differs.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="number of kills")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--sweep", help="kill this sweep instead of a training run")
    arguments = parser.parse_args()
    words = command(arguments.sweep)
    draw = random.Random(arguments.seed)  # noqa: S311 - moments, not secrets
    with tempfile.TemporaryDirectory(prefix="starpo-kill-") as folder:
        whole = Path(folder) / "whole"
        expected, whole_s = run_to_end(whole, words)
        _, reused_s = run_to_end(whole, words)
        console.print(f"uninterrupted {whole_s:.1f} s, all reused {reused_s:.1f} s")
        # one kill moves the run on by a share of the work, so that the kills spread over all of it
        longest_s = reused_s + 2 * (whole_s - reused_s) / max(arguments.kills, 2)
        kills, orphans, homes = 0, 0, [Path(folder) / "killed-0"]
        while kills < arguments.kills:
            after_s = draw.uniform(0.2, longest_s)
            if not run_and_kill(homes[-1], words, after_s):
                homes.append(Path(folder) / f"killed-{len(homes)}")  # it finished: start another
                continue
            kills += 1
            left = await_no_orphans(homes[-1])
            orphans += len(left)
            console.print(f"kill {kills}: after {after_s:.1f} s, orphans {left or 'none'}")
        rows = {"kills": (True, str(kills)), "orphaned processes": (orphans == 0, str(orphans))}
        for home in homes:
            rows |= {
                f"{home.name}: {name}": row
                for name, row in differences(
                    home, whole, sweep=arguments.sweep, expected=expected
                ).items()
            }
    table = Table(title=f"{kills} kills", title_justify="left")
    for column in ("what", "found", "holds"):
        table.add_column(column)
    for name, (holds, text) in rows.items():
        table.add_row(name, text if holds else f"[red]{text}[/red]", "yes" if holds else "NO")
    console.print(table)
    return 0 if all(holds for holds, _ in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
