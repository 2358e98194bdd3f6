"""Checks estimators, losses, filters, pass@k and collapse against files of reference numbers.

A folder holds JSON files `{"tolerance": t, "cases": [...]}`; a number is met when it differs by at
most t * max(1, |expected|), a list of kept groups when it is equal.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.estimators import GroupEstimator, bilevel_gae, gae, group_advantages, whiten
from models.losses import Normaliser, clipped_policy_loss, kl_estimate, reduce_losses
from models.settings import KLEstimator, Reduction
from tasks.collapse import collapse_metrics
from tasks.errors import ReferenceFolderError
from tasks.filter_rules import (
    FilterSettings,
    Metric,
    Rule,
    Strategy,
    TopPMode,
    group_scores,
    keep_groups,
)
from tasks.intervals import pass_at_k

Case = Mapping[str, Any]
Numbers = dict[str, Any]


@dataclass(frozen=True)
class CaseResult:
    """Outcome of one quantity of one case.

    Attributes:
        file: Name of the file, e.g. `advantages.json`.
        case: The case's id.
        quantity: What was compared, e.g. `returns`.
        met: Whether it is within tolerance.
        expected: From the file.
        found: Ours.
    """

    file: str
    case: str
    quantity: str
    met: bool
    expected: Any
    found: Any


def check_folder(folder: Path) -> list[CaseResult]:
    """Compares every case of every known file in a folder.

    Args:
        folder: Holds some of `advantages.json`, `losses.json`, `filters.json`,
            `filters_parity.json`, `pass_at_k.json` and `collapse.json`; other files are left alone.

    Returns:
        One result per compared quantity, in the files' order.

    Raises:
        ReferenceFolderError: The folder has none of the files, or a case of an unknown kind.
    """
    files = [name for name in COMPUTE if (folder / name).is_file()]
    if not files:
        raise ReferenceFolderError(
            f"`{folder}` has no reference numbers\nhint: known files are {', '.join(COMPUTE)}"
        )
    results: list[CaseResult] = []
    for name in files:
        content = json.loads((folder / name).read_text())
        for case in content["cases"]:
            for quantity, found in COMPUTE[name](case).items():
                expected = case.get("expect", case)[quantity]
                met = is_met(found, expected, tolerance=content["tolerance"])
                results.append(CaseResult(name, case["id"], quantity, met, expected, found))
    return results


def is_met(found: Any, expected: Any, *, tolerance: float) -> bool:
    """Whether |found - expected| <= tolerance * max(1, |expected|) for every entry."""
    ours, theirs = np.asarray(found, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    if ours.shape != theirs.shape:
        return False
    return bool(np.all(np.abs(ours - theirs) <= tolerance * np.maximum(1.0, np.abs(theirs))))


def _advantages(case: Case) -> Numbers:
    kind = case["estimator"]
    if kind == "group":
        returns = np.array(case["returns_in"], dtype=np.float64)
        ids = np.full(len(returns), "group")
        return {
            estimator.value: group_advantages(returns, ids, estimator=estimator).tolist()
            for estimator in GroupEstimator
            if estimator.value in case
        }
    common = {"gamma": case["gamma"], "lam": case["lam"]}
    common["bootstrap_value"] = case.get("bootstrap_value", 0.0)
    values = np.array(case["values"], dtype=np.float64)
    if kind == "gae":
        mask = np.array(case["mask"], dtype=np.bool_)
        rewards = np.array(case["token_rewards"], dtype=np.float64)
        advantages, returns = gae(rewards=rewards, values=values, mask=mask, **common)
    elif kind == "bilevel_gae":
        turn = np.array(case["turn"], dtype=np.int16)
        mask = turn >= 0
        advantages, returns = bilevel_gae(
            turn_rewards=np.array(case["turn_rewards"], dtype=np.float64),
            values=values,
            turn=turn,
            turn_gamma=case["turn_gamma"],
            **common,
        )
    else:
        raise _unknown(case, "estimator", kind)
    numbers = {"advantages": advantages.tolist(), "returns": returns.tolist()}
    if "whitened" in case:
        numbers["whitened"] = whiten(advantages, mask).tolist()
    return numbers


def _losses(case: Case) -> Numbers:
    kind = case["kind"]
    if kind == "clipped":
        loss = clipped_policy_loss(
            torch.tensor(case["ratio"], dtype=torch.float64),
            torch.tensor(case["advantage"], dtype=torch.float64),
            clip_low=case["clip_low"],
            clip_high=case["clip_high"],
            dual_clip=case.get("dual_clip"),
        )
        return {"loss": float(loss)}
    if kind == "kl":
        difference = torch.tensor(case["log_ratio_policy_minus_reference"], dtype=torch.float64)
        return {
            estimator.value: float(kl_estimate(difference, estimator=estimator))
            for estimator in KLEstimator
            if estimator.value in case
        }
    if kind == "aggregate":
        return _reductions(case)
    raise _unknown(case, "kind", kind)


def _reductions(case: Case) -> Numbers:
    losses = np.array(case["losses"], dtype=np.float64)
    mask = np.array(case["mask"], dtype=np.bool_)
    counts = mask.sum(axis=1).tolist()
    weights = torch.ones(len(losses), dtype=torch.float64)
    normaliser = Normaliser.of(counts, weights=weights.tolist(), longest=losses.shape[1])
    return {
        reduction.value: float(
            reduce_losses(
                torch.from_numpy(losses[mask]),
                counts,
                weights,
                reduction=reduction,
                normaliser=normaliser,
            )
        )
        for reduction in Reduction
        if reduction.value in case
    }


def _filters(case: Case) -> Numbers:
    # Without validation: a reference may ask for shares that our settings refuse as mistakes.
    settings = FilterSettings.model_construct(
        strategy=Strategy(case["strategy"]),
        value=float(case["value"]),
        metric=Metric(case["metric"]),
        largest=case["largest"],
        rule=Rule(case["rule"]),
        min_score=case.get("min_score", 0.0),
        include_zero=case.get("include_zero", True),
        top_p_mode=TopPMode(case.get("top_p_mode", "linear")),
        eps=case.get("eps", 0.01),
    )
    groups = [np.array(returns, dtype=np.float64) for returns in case["returns_in"]]
    return {"kept": keep_groups(group_scores(groups, metric=settings.metric), settings=settings)}


def _pass_at_k(case: Case) -> Numbers:
    return {"pass_at_k": pass_at_k(case["samples"], case["successes"], case["k"])}


def _collapse(case: Case) -> Numbers:
    arrays = (np.array(case[name]) for name in ("own_prompt", "tokens"))
    scores = np.array(case["total_log_prob"], dtype=np.float64)
    ks = [int(name.partition("@")[2]) for name in case["expect"] if name.startswith("retrieval@")]
    found = collapse_metrics(scores, *arrays, retrieved=ks)
    return {name: found[name] for name in case["expect"]}


def _unknown(case: Case, field: str, value: object) -> ReferenceFolderError:
    return ReferenceFolderError(f"case `{case['id']}` has an unknown `{field}`: `{value}`")


COMPUTE: Mapping[str, Callable[[Case], Numbers]] = {
    "advantages.json": _advantages,
    "losses.json": _losses,
    "filters.json": _filters,
    "filters_parity.json": _filters,
    "pass_at_k.json": _pass_at_k,
    "collapse.json": _collapse,
}
