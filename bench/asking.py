"""Filter and group advantages of a large rollout on one core: a million tokens, 10,000 groups."""

import time

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tasks.advantage import kept_rows
from tasks.estimates import AdvantageSettings, Estimator, estimate_advantages
from tasks.filter import filter_groups
from tasks.filter_rules import FilterSettings
from tasks.shards import ragged

GROUPS, MEMBERS, TOKENS, REPEATS = 10_000, 4, 25, 3


def large_rollout() -> pa.Table:
    """What filter and group estimators need of a rollout, at full size."""
    rng = np.random.default_rng(0)
    rows = GROUPS * MEMBERS
    groups = np.repeat(np.arange(GROUPS), MEMBERS)
    sampled = rng.random(rows * TOKENS) < 0.4
    zeros = np.zeros(rows)
    return pa.table(
        {
            "episode": [f"{group:06d}/{row % MEMBERS}" for row, group in enumerate(groups)],
            "group": [f"{group:06d}" for group in groups],
            "sequence": zeros.astype(np.int16),
            "first_turn": zeros.astype(np.int16),
            "status": ["finished"] * rows,
            "return": rng.integers(0, 2, rows).astype(np.float32),
            "penalty": zeros.astype(np.float32),
            "truncated": np.zeros(rows, dtype=np.bool_),
            "tokens": ragged([np.zeros(TOKENS, dtype=np.int32)] * rows, pa.int32()),
            "sampled": ragged(np.split(sampled, rows), pa.bool_()),
        }
    )


def main() -> None:
    """Measures and prints the table."""
    rollout = large_rollout()
    table = Table("estimator", "filter", "advantage", "together", title="1,000,000 tokens, seconds")
    for estimator in (Estimator.DR_GRPO, Estimator.GRPO, Estimator.RLOO):
        spent = []
        for _ in range(REPEATS):
            start = time.process_time()
            groups = filter_groups(rollout, settings=FilterSettings())
            middle = time.process_time()
            rows = kept_rows(rollout, groups)
            estimate_advantages(rows, settings=AdvantageSettings(estimator=estimator))
            spent.append((middle - start, time.process_time() - middle))
        first, second = min(spent, key=sum)
        table.add_row(estimator, f"{first:.3f}", f"{second:.3f}", f"{first + second:.3f}")
    table.caption = "target <= 0.5 s together; every group that has a spread is kept up to 90 %"
    Console().print(table)


if __name__ == "__main__":
    main()
