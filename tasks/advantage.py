"""Advantage: how much better each sampled token did than expected, in the kept groups."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from models.lane_work import deal, undeal
from models.settings import KLTerm
from tasks.estimates import AdvantageSettings, Estimates, cut_episodes, estimate_advantages
from tasks.filter_rules import LossScaling, loss_scale
from tasks.lanes import Lanes
from tasks.log_probs import shard_log_probs
from tasks.shards import Kind, full_log_probs, ragged, read_shard, rows_of
from tasks.stage import Job, stage
from tasks.summary import episode_rows


class AdvantageJobSettings(BaseModel):
    """What determines the advantages besides the shards.

    Attributes:
        kl: Penalty on the reward for leaving the reference policy; None without one.
        loss_scaling: How the update's loss shrinks with the share of groups that were kept.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    advantage: AdvantageSettings
    lanes: int
    kl: KLTerm | None = None
    loss_scaling: LossScaling = LossScaling.NONE


@dataclass(frozen=True)
class ValuePayload:
    """Sequences whose values one lane computes."""

    policy: Path
    tokens: list[NDArray[np.int32]]


def value_lane(payload: ValuePayload) -> list[NDArray[np.float32]]:
    """Values of every position of each sequence, from the policy's critic."""
    from models.critic import load_critic, values_of

    return values_of(load_critic(payload.policy), payload.tokens)


def kept_rows(trajectories: pa.Table, groups: pa.Table) -> pa.Table:
    """The rows of kept groups that did not error, in the shard's order."""
    kept = groups.filter(groups["kept"])["group"]
    alive = pc.not_equal(trajectories["status"], "errored")
    return trajectories.filter(pc.and_(pc.is_in(trajectories["group"], kept), alive))


def without_cut_replies(rows: pa.Table, estimates: Estimates) -> Estimates:
    """The estimates with advantage 0 for episodes that have a reply cut at the token limit."""
    cut = cut_episodes(rows)
    advantages = [
        np.zeros_like(row) if episode in cut else row
        for row, episode in zip(estimates.advantages, rows["episode"].to_pylist(), strict=True)
    ]
    return replace(estimates, advantages=advantages)


@stage("advantage", version=2)
def advantage(job: Job[AdvantageJobSettings]) -> None:
    """Estimates advantages for the kept groups of a rollout."""
    settings = job.settings.advantage
    rollout = read_shard(job.inputs["trajectories"], kind=Kind.TRAJECTORIES)
    groups = read_shard(job.inputs["groups"], kind=Kind.GROUPS).table
    rows = kept_rows(rollout.table, groups)
    values = None
    if settings.needs_critic and rows.num_rows:
        values = _values(rows, job.inputs["policy"], lanes=job.lanes, num_lanes=job.settings.lanes)
    costs: list[NDArray[np.float64]] | None = None
    kl_metrics: dict[str, float] = {}
    if job.settings.kl is not None and rows.num_rows:
        costs, kl_metrics = _kl_costs(
            rows, job, temperature=rollout.metadata["sampling"]["temperature"]
        )
    estimates = estimate_advantages(rows, settings=settings, values=values, token_costs=costs)
    if rollout.metadata["cut_replies"] == "mask":
        estimates = without_cut_replies(rows, estimates)
    table = pa.table(
        {
            **{name: rows[name] for name in ("episode", "sequence", "group", "weight")},
            "advantages": ragged(estimates.advantages, pa.float32()),
            "returns": ragged(estimates.returns, pa.float32()),
            "values": ragged(estimates.values, pa.float32()),
        }
    )
    kept_share = float(np.mean(groups["kept"].to_numpy(zero_copy_only=False)))  # 1 after a refill
    scale = loss_scale(kept_share, scaling=job.settings.loss_scaling)
    job.write_shard("advantages", table, kind=Kind.ADVANTAGES, loss_scale=scale)
    job.metrics = advantage_metrics(rows, estimates) | kl_metrics


def advantage_metrics(rows: pa.Table, estimates: Estimates) -> dict[str, float]:
    """Spread of the advantages, and their share in groups where nobody succeeded."""
    metrics = {"advantage/episodes": float(episode_rows(rows).num_rows)}
    if not rows.num_rows:
        return metrics
    masks = rows_of(rows, "sampled")
    sampled = np.concatenate(
        [row[mask] for row, mask in zip(estimates.advantages, masks, strict=True)]
    )
    mass = np.array([np.abs(row).sum() for row in estimates.advantages])
    groups = np.array(rows["group"].to_pylist())
    won = set(groups[rows["success"].to_numpy(zero_copy_only=False)])
    hopeless = np.array([group not in won for group in groups])
    metrics["advantage/mean"] = float(sampled.mean())
    metrics["advantage/std"] = float(sampled.std())
    metrics["advantage/mass_without_success"] = float(
        mass[hopeless].sum() / mass.sum() if mass.sum() > 0 else 0.0
    )
    return metrics


def _kl_costs(
    rows: pa.Table, job: Job[AdvantageJobSettings], *, temperature: float
) -> tuple[list[NDArray[np.float64]], dict[str, float]]:
    """Per row: coefficient x KL estimate of each sampled token, 0 elsewhere; and the mean KL."""
    import torch

    from models.losses import kl_estimate

    term = job.settings.kl
    assert term is not None, "asked for with a KL term only"  # noqa: S101
    masks = rows_of(rows, "sampled")
    reference, _ = shard_log_probs(
        job.inputs["reference"],
        rows_of(rows, "tokens"),
        masks,
        temperature=temperature,
        lanes=job.lanes,
        num_lanes=job.settings.lanes,
    )
    costs = []
    for row, mask, theirs in zip(full_log_probs(rows), masks, reference, strict=True):
        difference = torch.from_numpy((row[mask] - theirs).astype(np.float64))
        cost = np.zeros(len(row))
        cost[mask] = term.coefficient * kl_estimate(difference, estimator=term.estimator).numpy()
        costs.append(cost)
    total = sum(float(cost.sum()) for cost in costs) / term.coefficient
    return costs, {"advantage/reference_kl": total / max(sum(int(mask.sum()) for mask in masks), 1)}


def _values(
    rows: pa.Table, policy: Path, *, lanes: Lanes, num_lanes: int
) -> list[NDArray[np.float32]]:
    payloads = [ValuePayload(policy, lane) for lane in deal(rows_of(rows, "tokens"), num_lanes)]
    return undeal(lanes.map(value_lane, payloads))
