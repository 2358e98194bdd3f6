"""What the pipeline costs beside the computing: orchestration's share, and the size of a shard.

Runs a short experiment with the quick start's sizes in a home of its own and reads the records.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

OVERRIDES = ["train.iterations=20", "train.evaluate_every=20", "warmstart.episodes=960"]


def run(home: Path) -> dict[str, float]:
    """Runs the experiment in a process of its own.

    Returns:
        Seconds of the whole run and of its stages' own work.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.orchestration", *OVERRIDES],
        env={**os.environ, "STARPO_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def shard_sizes(home: Path) -> tuple[int, int]:
    """Bytes of all trajectory shards, and of their rows as JSON lines."""
    store = home / ".starpo" / "store"
    parquet = jsonl = 0
    for path in (store / "records").rglob("*.json"):
        record = json.loads(path.read_text())
        if record["stage"] == "rollout":
            digest = record["outputs"]["trajectories"]["digest"]
            shard = store / "objects" / digest[:2] / f"{digest}.parquet"
            parquet += shard.stat().st_size
            rows = pq.read_table(shard).to_pylist()
            jsonl += sum(len(json.dumps(row)) + 1 for row in rows)
    return parquet, jsonl


def main() -> None:
    """Measures and prints the table."""
    with tempfile.TemporaryDirectory() as place:
        seconds = run(Path(place))
        parquet, jsonl = shard_sizes(Path(place))
    share = 1 - seconds["work_s"] / seconds["whole_s"]
    table = Table("what", "found", "target", title="Pipeline, 20 iterations of the quick start")
    table.add_row(
        "orchestration's share of the run's wall time",
        f"{share:.1%} ({seconds['whole_s'] - seconds['work_s']:.1f} of {seconds['whole_s']:.1f} s)",
        "<= 5 %",
    )
    table.add_row(
        "bytes of a shard against JSON lines",
        f"1/{jsonl / parquet:.1f} ({parquet:,} against {jsonl:,})",
        "<= 1/6",
    )
    Console().print(table)


if __name__ == "__main__":
    main()
