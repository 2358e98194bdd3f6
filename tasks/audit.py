"""Audit: questions to the shards of a run whose right answer is no row at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tasks.store import Reference, Store

KEY = ["episode", "sequence"]


@dataclass
class Finding:
    """Rows that a question returned over all iterations.

    Attributes:
        num_rows: How many.
        example: The first one in words.
    """

    num_rows: int = 0
    example: str = ""


@dataclass
class Audit:
    """Answers by question, and how much was looked at."""

    findings: dict[str, Finding] = field(default_factory=dict)
    iterations: int = 0
    tokens: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether no question returned a row."""
        return all(finding.num_rows == 0 for finding in self.findings.values())


def audit_iteration(
    audit: Audit, shards: Mapping[str, Path], *, label: str, max_gap: float
) -> None:
    """Asks all questions about one iteration, and adds the answers.

    Args:
        audit: Collects.
        shards: Paths of `trajectories`, `groups`, `advantages`, and `log_probs` where diagnosed.
        label: Names the iteration in examples.
        max_gap: Log-prob gap between sampler and trainer that is still rounding.
    """
    tokens = _tokens(pl.scan_parquet(shards["trajectories"]))
    advantages = pl.scan_parquet(shards["advantages"])
    loss = (
        advantages.select(*KEY, "advantages", token=pl.int_ranges(pl.col("advantages").list.len()))
        .explode("advantages", "token")
        .join(tokens, on=[*KEY, "token"], how="left")
    )
    alive = (
        pl.scan_parquet(shards["trajectories"])
        .join(pl.scan_parquet(shards["groups"]).filter("kept"), on="group", how="semi")
        .filter(pl.col("status") != "errored")
    )
    in_loss = pl.col("logprobs").is_not_null()
    questions = {
        "in the loss and not sampled": loss.filter(
            (in_loss | (pl.col("advantages") != 0)) & ~pl.col("sampled").fill_null(value=False)
        ),
        "sampled and not in the loss": loss.filter(pl.col("sampled") & ~in_loss),
        "sampled outside every turn": tokens.filter(pl.col("sampled") != (pl.col("turn") >= 0)),
        "learned from and not sampled in a rollout": advantages.join(alive, on=KEY, how="anti"),
        "kept and not learned from": alive.join(advantages, on=KEY, how="anti"),
    }
    if "log_probs" in shards:
        gaps = pl.scan_parquet(shards["log_probs"]).explode("trainer_logprobs", "sampler_logprobs")
        gap = (pl.col("trainer_logprobs") - pl.col("sampler_logprobs")).abs()
        questions[f"log-prob gap above {max_gap:g}"] = gaps.filter(gap > max_gap)
    answers = pl.collect_all([question.select(KEY) for question in questions.values()])
    for name, rows in zip(questions, answers, strict=True):
        finding = audit.findings.setdefault(name, Finding())
        if rows.height and not finding.num_rows:
            finding.example = f"{label}, episode {rows['episode'][0]}"
        finding.num_rows += rows.height
    audit.iterations += 1
    audit.tokens += tokens.select(pl.len()).collect().item()


def _tokens(trajectories: pl.LazyFrame) -> pl.LazyFrame:
    """One row per token."""
    columns = ["sampled", "logprobs", "turn"]
    ranges = pl.int_ranges(pl.col("sampled").list.len())
    return trajectories.select(*KEY, *columns, token=ranges).explode(*columns, "token")


def verified_paths(store: Store, outputs: Mapping[str, Reference]) -> dict[str, Path]:
    """Paths of a stage's outputs after checking their digests."""
    return {name: store.verified(reference) for name, reference in outputs.items()}
