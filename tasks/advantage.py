"""Advantage: how much better each sampled token did than expected, in the kept groups."""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from models.estimators import GroupEstimator, bilevel_gae, gae, group_advantages, whiten
from tasks.lanes import Lanes
from tasks.shards import Kind, ragged, read_shard, rows_of
from tasks.stage import Job, stage
from tasks.summary import learning_returns


class Estimator(StrEnum):
    """How advantages are estimated."""

    GRPO = "grpo"
    """Return minus the group's mean, over the group's standard deviation."""
    DR_GRPO = "dr_grpo"
    """Return minus the group's mean."""
    RLOO = "rloo"
    """Return minus the mean of the other members."""
    GAE = "gae"
    """Generalised advantage estimation over the sampled tokens, with a critic (PPO)."""
    BILEVEL_GAE = "bilevel_gae"
    """GAE over turns, then over the tokens of each turn, with a critic."""


class AdvantageSettings(BaseModel):
    """The estimator and its discounts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimator: Estimator = Field(default=Estimator.DR_GRPO, description="How to estimate.")
    gamma: float = Field(default=1.0, gt=0, le=1, description="Discount per token (critic only).")
    lam: float = Field(default=1.0, ge=0, le=1, description="GAE's lambda (critic only).")
    turn_gamma: float = Field(default=1.0, gt=0, le=1, description="Discount per turn (bi-level).")
    whiten: bool = Field(
        default=True, description="Give critic-based advantages mean 0 and deviation 1 per batch."
    )

    @property
    def needs_critic(self) -> bool:
        """Whether values are needed."""
        return self.estimator in {Estimator.GAE, Estimator.BILEVEL_GAE}

    @property
    def compares_groups(self) -> bool:
        """Whether a group of one has no advantage."""
        return not self.needs_critic


class AdvantageJobSettings(BaseModel):
    """What determines the advantages besides the shards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    advantage: AdvantageSettings
    lanes: int


@dataclass(frozen=True)
class ValuePayload:
    """Sequences whose values one lane computes."""

    policy: Path
    tokens: list[NDArray[np.int32]]


def value_lane(payload: ValuePayload) -> list[NDArray[np.float32]]:
    """Values of every position of each sequence, from the policy's critic."""
    from models.critic import load_critic, values_of

    critic = load_critic(payload.policy)
    return values_of(critic, payload.tokens)


def group_estimates(
    trajectories: pa.Table, *, settings: AdvantageSettings
) -> list[NDArray[np.float64]]:
    """Group-based advantages, one per episode, spread over its sampled tokens.

    Args:
        trajectories: Rows of the kept groups, none errored.
        settings: The estimator.

    Returns:
        One array per row; shape [T], 0 where not sampled.
    """
    groups = np.array(trajectories["group"].to_pylist())
    estimates = group_advantages(
        learning_returns(trajectories), groups, estimator=GroupEstimator(settings.estimator.value)
    )
    masks = rows_of(trajectories, "sampled")
    return [np.where(mask, value, 0.0) for mask, value in zip(masks, estimates, strict=True)]


@dataclass(frozen=True)
class CriticEstimates:
    """Per row: advantages, returns (targets of the critic) and values; shape [T] each."""

    advantages: list[NDArray[np.float64]]
    returns: list[NDArray[np.float64]]
    values: list[NDArray[np.float64]]


def critic_estimates(
    trajectories: pa.Table,
    values: list[NDArray[np.float32]],
    *,
    settings: AdvantageSettings,
) -> CriticEstimates:
    """GAE or bi-level GAE of each row.

    A turn's reward is paid at its last sampled token. A truncated episode continues after its last
    token with the critic's value of its own last state; a terminated one with 0 (A11).

    Args:
        trajectories: Rows of the kept groups, none errored.
        values: `values[t]` is the value of the state before token t; shape [T + 1] per row, the
            last entry being the value after all tokens.
        settings: The estimator and its discounts.
    """
    advantages, returns = [], []
    columns = [rows_of(trajectories, name) for name in ("turn", "rewards", "penalties")]
    truncated = trajectories["truncated"].to_pylist()
    for turn, rewards, penalties, value, cut in zip(*columns, values, truncated, strict=True):
        paid = (rewards + penalties).astype(np.float64)
        value64 = value.astype(np.float64)
        bootstrap = float(value64[-1]) if cut else 0.0
        if settings.estimator is Estimator.GAE:
            estimate = gae(
                rewards=token_rewards(turn, paid),
                values=value64[:-1],
                mask=turn >= 0,
                gamma=settings.gamma,
                lam=settings.lam,
                bootstrap_value=bootstrap,
            )
        else:
            estimate = bilevel_gae(
                turn_rewards=paid,
                values=value64[:-1],
                turn=turn,
                gamma=settings.gamma,
                lam=settings.lam,
                turn_gamma=settings.turn_gamma,
                bootstrap_value=bootstrap,
            )
        advantages.append(estimate[0])
        returns.append(estimate[1])
    if settings.whiten and advantages:
        flat = whiten(np.concatenate(advantages), np.concatenate(columns[0]) >= 0)
        advantages = np.split(flat, np.cumsum([len(row) for row in advantages])[:-1])
    return CriticEstimates(advantages, returns, [row[:-1].astype(np.float64) for row in values])


def token_rewards(
    turn: NDArray[np.int16], turn_rewards: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rewards per token: each turn's at its last sampled token, 0 elsewhere.

    Args:
        turn: Turn index of sampled tokens, -1 elsewhere; shape [T].
        turn_rewards: One per turn; shape [turns].
    """
    rewards = np.zeros(len(turn))
    for index, reward in enumerate(turn_rewards):
        rewards[np.flatnonzero(turn == index)[-1]] = reward
    return rewards


def kept_rows(trajectories: pa.Table, groups: pa.Table) -> pa.Table:
    """The rows of kept groups that did not error, in the shard's order."""
    kept = groups.filter(groups["kept"])["group"]
    alive = pc.not_equal(trajectories["status"], "errored")
    return trajectories.filter(pc.and_(pc.is_in(trajectories["group"], kept), alive))


def without_cut_replies(rows: pa.Table, estimates: CriticEstimates) -> CriticEstimates:
    """The estimates with advantage 0 for episodes that have a reply cut at the token limit."""
    cut = ["length" in reasons for reasons in rows["stop_reasons"].to_pylist()]
    advantages = [
        np.zeros_like(row) if masked else row
        for row, masked in zip(estimates.advantages, cut, strict=True)
    ]
    return replace(estimates, advantages=advantages)


@stage("advantage", version=1)
def advantage(job: Job[AdvantageJobSettings]) -> None:
    """Estimates advantages for the kept groups of a rollout."""
    settings = job.settings.advantage
    rollout = read_shard(job.inputs["trajectories"], kind=Kind.TRAJECTORIES)
    groups = read_shard(job.inputs["groups"], kind=Kind.GROUPS)
    rows = kept_rows(rollout.table, groups.table)
    masked = rollout.metadata["cut_replies"] == "mask"
    if settings.needs_critic:
        values = _values(rows, job.inputs["policy"], lanes=job.lanes, num_lanes=job.settings.lanes)
        estimates = critic_estimates(rows, values, settings=settings)
    else:
        advantages = group_estimates(rows, settings=settings)
        zeros = [np.zeros(len(row)) for row in advantages]
        estimates = CriticEstimates(advantages, zeros, zeros)
    if masked:
        estimates = without_cut_replies(rows, estimates)
    table = pa.table(
        {
            **{name: rows[name] for name in ("episode", "sequence", "group", "weight")},
            "advantages": ragged(estimates.advantages, pa.float32()),
            "returns": ragged(estimates.returns, pa.float32()),
            "values": ragged(estimates.values, pa.float32()),
        }
    )
    job.write_shard("advantages", table, kind=Kind.ADVANTAGES)
    job.metrics = advantage_metrics(rows, estimates)


def advantage_metrics(rows: pa.Table, estimates: CriticEstimates) -> dict[str, float]:
    """Spread of the advantages, and their share in groups where nobody succeeded."""
    metrics = {"advantage/episodes": float(rows.num_rows)}
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


def _values(
    rows: pa.Table, policy: Path, *, lanes: Lanes, num_lanes: int
) -> list[NDArray[np.float32]]:
    tokens = rows_of(rows, "tokens")
    payloads = [ValuePayload(policy, tokens[lane::num_lanes]) for lane in range(num_lanes)]
    found: list[NDArray[np.float32]] = [np.empty(0, dtype=np.float32)] * len(tokens)
    for lane, values in enumerate(lanes.map(value_lane, payloads)):
        found[lane::num_lanes] = values
    return found
