"""Stop rules: when going on with a run is a waste, and the words that say why."""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

Metrics = Mapping[str, float]
SPREAD = "rollout/group_return_std"


class StopSettings(BaseModel):
    """When a run is stopped early; a number of 0 switches a rule off."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    collapse_updates: int = Field(
        default=10,
        ge=0,
        description="Iterations in a row whose return std inside groups is under a share of that "
        "of as many first ones.",
    )
    collapse_share: float = Field(default=0.1, gt=0, lt=1, description="That share.")
    low_evaluations: int = Field(
        default=5, ge=0, description="Evaluations in a row with low success, after a higher one."
    )
    low_success: float = Field(default=0.01, gt=0, lt=1, description="What counts as low.")
    skipped_updates: int = Field(
        default=5, ge=0, description="Updates in a row that had nothing to learn from."
    )
    nonfinite_updates: int = Field(
        default=5, ge=0, description="Updates in a row with a gradient that is not finite."
    )


def stop_reason(history: Sequence[Metrics], settings: StopSettings) -> str | None:
    """Why to stop now; None to go on.

    Args:
        history: Metrics of each iteration so far, in order.
        settings: The rules.
    """
    rules = (_nothing_to_learn, _not_finite, _collapsed, _low_success)
    return next((reason for rule in rules if (reason := rule(history, settings))), None)


def _nothing_to_learn(history: Sequence[Metrics], settings: StopSettings) -> str | None:
    count = settings.skipped_updates
    if _in_a_row(history, count, "update/skipped_empty"):
        return f"{count} updates in a row had nothing to learn from: the filter kept no group"
    return None


def _not_finite(history: Sequence[Metrics], settings: StopSettings) -> str | None:
    count = settings.nonfinite_updates
    if _in_a_row(history, count, "update/skipped_nonfinite"):
        return f"{count} updates in a row had a gradient that is not finite"
    return None


def _in_a_row(history: Sequence[Metrics], count: int, name: str) -> bool:
    """Whether the last `count` iterations all counted something; never for a count of 0."""
    return 0 < count <= len(history) and all(row[name] > 0 for row in history[-count:])


def _collapsed(history: Sequence[Metrics], settings: StopSettings) -> str | None:
    count = settings.collapse_updates
    if not count or len(history) < 2 * count:
        return None
    first = float(np.mean([row.get(SPREAD, 0.0) for row in history[:count]]))
    limit = settings.collapse_share * first
    if first > 0 and all(row.get(SPREAD, 0.0) < limit for row in history[-count:]):
        return (
            f"the return std inside groups stayed under {settings.collapse_share:.0%} of that of "
            f"the first {count} iterations ({first:.3g}) for {count} iterations: returns collapsed"
        )
    return None


def _low_success(history: Sequence[Metrics], settings: StopSettings) -> str | None:
    count = settings.low_evaluations
    rates = [row["evaluate/success"] for row in history if "evaluate/success" in row]
    if not count or len(rates) <= count or max(rates[:-count]) < settings.low_success:
        return None  # off until the first success
    if all(rate < settings.low_success for rate in rates[-count:]):
        return f"success stayed below {settings.low_success:.0%} in {count} evaluations in a row"
    return None
