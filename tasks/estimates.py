"""Advantages of the rows of a trajectory shard: estimators applied to whole episodes.

An episode has one row in the full context and one per turn in the others; estimators see its turns
in order either way, and an episode counts once in every mean (I4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from models.estimators import (
    GroupEstimator,
    Normalisation,
    bilevel_gae,
    gae,
    group_advantages,
    group_deviations,
    normalised_returns,
    rewards_to_go,
    spread,
    step_advantages,
    turn_gae,
    whiten,
)
from tasks.episodes import Episodes, Rows, pieces
from tasks.shards import rows_of


class Estimator(StrEnum):
    """How advantages are estimated."""

    GRPO = "grpo"
    """Return minus the group's mean, over the group's standard deviation."""
    DR_GRPO = "dr_grpo"
    """Return minus the group's mean."""
    RLOO = "rloo"
    """Return minus the mean of the other members."""
    REINFORCE_PP = "reinforce_pp"
    """Rewards to go, whitened over the batch (arXiv 2501.03262)."""
    REINFORCE_PP_BASELINE = "reinforce_pp_baseline"
    """Return minus the group's mean, whitened over the batch."""
    GIGPO = "gigpo"
    """Return minus the group's mean, plus that of each turn over turns from the same state."""
    GAE = "gae"
    """Generalised advantage estimation over the sampled tokens, with a critic (PPO)."""
    TURN_GAE = "turn_gae"
    """The same over turns, with a critic; all tokens of a turn share its advantage."""
    BILEVEL_GAE = "bilevel_gae"
    """GAE over turns, then over the tokens of each turn, with a critic."""


CRITIC_BASED = frozenset({Estimator.GAE, Estimator.TURN_GAE, Estimator.BILEVEL_GAE})
WHITENED = frozenset({Estimator.REINFORCE_PP, Estimator.REINFORCE_PP_BASELINE})
EPISODE_ESTIMATOR = {
    Estimator.GRPO: GroupEstimator.GRPO,
    Estimator.DR_GRPO: GroupEstimator.DR_GRPO,
    Estimator.RLOO: GroupEstimator.RLOO,
    Estimator.REINFORCE_PP_BASELINE: GroupEstimator.DR_GRPO,
    Estimator.GIGPO: GroupEstimator.DR_GRPO,
}


class NormalisedBy(StrEnum):
    """Whose returns an episode's return is compared with."""

    GROUP = "group"
    BATCH = "batch"


class AdvantageSettings(BaseModel):
    """The estimator and its discounts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimator: Estimator = Field(default=Estimator.DR_GRPO, description="How to estimate.")
    gamma: float = Field(
        default=1.0, gt=0, le=1, description="Discount per token (gae, bilevel_gae, reinforce_pp)."
    )
    lam: float = Field(default=1.0, ge=0, le=1, description="GAE's lambda (critic only).")
    turn_gamma: float = Field(
        default=1.0, gt=0, le=1, description="Discount per turn (bilevel_gae, turn_gae, gigpo)."
    )
    whiten: bool = Field(
        default=True, description="Give critic-based advantages mean 0 and deviation 1 per batch."
    )
    step_weight: float = Field(
        default=1.0, ge=0, description="gigpo: weight of a turn's advantage beside the episode's."
    )
    divide_by_std: bool = Field(
        default=False, description="gigpo: divide both differences by their standard deviations."
    )
    normalise: Normalisation = Field(
        default=Normalisation.IDENTITY,
        description="What replaces the episodes' returns before anything else; paid at the end.",
    )
    normalise_by: NormalisedBy = Field(
        default=NormalisedBy.GROUP, description="Over the group or the whole batch."
    )
    soft_reweighting: bool = Field(
        default=False, description="Multiply a group's advantages by its return std / the largest."
    )
    length_weighting: bool = Field(
        default=False,
        description="Multiply an episode's advantages by mean length / its length, in tokens.",
    )

    @property
    def needs_critic(self) -> bool:
        """Whether values are needed."""
        return self.estimator in CRITIC_BASED

    @property
    def compares_groups(self) -> bool:
        """Whether a group of one has no advantage."""
        by_group = self.normalise_by is NormalisedBy.GROUP
        return self.estimator in EPISODE_ESTIMATOR or (
            self.normalise is not Normalisation.IDENTITY and by_group
        )


@dataclass(frozen=True)
class Estimates:
    """Per row: advantages, returns (targets of the critic) and values; shape [T] each."""

    advantages: Rows
    returns: Rows
    values: Rows


def estimate_advantages(
    table: pa.Table,
    *,
    settings: AdvantageSettings,
    values: Sequence[NDArray[np.float32]] | None = None,
    token_costs: Sequence[NDArray[np.float64]] | None = None,
) -> Estimates:
    """Advantages of every sampled token.

    Args:
        table: Rows of the kept groups, none errored, in any order.
        settings: The estimator and what is done before and after it.
        values: For estimators with a critic: `values[row][t]` is the value of the state before
            token t, the last entry that after all tokens; shape [T + 1] per row.
        token_costs: Subtracted from the reward of each token, e.g. a KL penalty; [T] per row.
    """
    episodes = Episodes(table)
    masks = rows_of(table, "sampled")
    if not episodes.rows:
        return Estimates([], [], [])
    returns = _normalised(episodes, settings)
    zeros = [np.zeros(len(mask)) for mask in masks]
    if settings.needs_critic or settings.estimator is Estimator.REINFORCE_PP:
        found = _token_level(episodes, returns, settings, values, token_costs)
    else:
        if token_costs is not None:
            costs = [float(cost.sum()) for cost in episodes.joined(token_costs)]
            returns = returns - np.array(costs)
        found = Estimates(_episode_level(episodes, masks, returns, settings), zeros, zeros)
    advantages = found.advantages
    if settings.estimator in WHITENED or (settings.needs_critic and settings.whiten):
        advantages = _whitened(advantages, masks)
    if settings.soft_reweighting:
        deviations = group_deviations(episodes.returns, episodes.groups)
        scale = deviations / max(float(deviations.max()), 1e-12)
        advantages = _scaled(advantages, scale[episodes.of_row])
    if settings.length_weighting:
        sizes = np.bincount(episodes.of_row, weights=[int(mask.sum()) for mask in masks])
        scale = sizes.mean() / np.maximum(sizes, 1)
        advantages = _scaled(advantages, scale[episodes.of_row])
    return Estimates(advantages, found.returns, found.values)


def _scaled(rows: Rows, scale: NDArray[np.float64]) -> Rows:
    return [row * factor for row, factor in zip(rows, scale, strict=True)]


def _normalised(episodes: Episodes, settings: AdvantageSettings) -> NDArray[np.float64]:
    batch = np.full(len(episodes.groups), "batch")
    groups = episodes.groups if settings.normalise_by is NormalisedBy.GROUP else batch
    return normalised_returns(episodes.returns, groups, method=settings.normalise)


def _episode_level(
    episodes: Episodes,
    masks: list[NDArray[np.bool_]],
    returns: NDArray[np.float64],
    settings: AdvantageSettings,
) -> Rows:
    """One advantage per episode on all its sampled tokens, for GiGPO one per turn on top."""
    estimator = EPISODE_ESTIMATOR[settings.estimator]
    if settings.estimator is Estimator.GIGPO and settings.divide_by_std:
        estimator = GroupEstimator.GRPO
    per_episode = group_advantages(returns, episodes.groups, estimator=estimator)
    of_row = per_episode[episodes.of_row]
    lengths = [len(mask) for mask in masks]
    flat = np.repeat(of_row, lengths) * np.concatenate(masks)
    found = pieces(flat, lengths)
    if settings.estimator is Estimator.GIGPO:
        steps = episodes.split(_step_level(episodes, settings))
        found = [row + settings.step_weight * step for row, step in zip(found, steps, strict=True)]
    return found


def _step_level(episodes: Episodes, settings: AdvantageSettings) -> Rows:
    """GiGPO's advantage of each turn, spread over its tokens, per episode."""
    states = episodes.table["observations"].to_pylist()
    rewards = episodes.turn_rewards()
    to_go = [
        rewards_to_go(row, mask=np.ones(len(row), dtype=np.bool_), gamma=settings.turn_gamma)
        for row in rewards
    ]
    counts = [len(row) for row in rewards]
    flat = step_advantages(
        np.concatenate(to_go),
        np.array([state for rows in episodes.rows for row in rows for state in states[row]]),
        np.repeat(episodes.groups, counts),
        divide_by_std=settings.divide_by_std,
    )
    per_turn = pieces(flat, counts)
    return [spread(row, turn) for row, turn in zip(per_turn, episodes.turns(), strict=True)]


def _token_level(
    episodes: Episodes,
    returns: NDArray[np.float64],
    settings: AdvantageSettings,
    values: Sequence[NDArray[np.float32]] | None,
    token_costs: Sequence[NDArray[np.float64]] | None,
) -> Estimates:
    """GAE in its three forms, and rewards to go.

    A turn's reward is paid at its last sampled token. A truncated episode continues after its last
    token with the critic's value of its own last state; a terminated one with 0 (A11).
    """
    table = episodes.table
    if values is None:
        values = [np.zeros(len(row) + 1, dtype=np.float32) for row in rows_of(table, "tokens")]
    before = [row[:-1].astype(np.float64) for row in values]
    truncated = table["truncated"].to_pylist()
    paid = episodes.turn_rewards()
    if settings.normalise is not Normalisation.IDENTITY:
        paid = [
            np.append(np.zeros(len(row) - 1), total)
            for row, total in zip(paid, returns, strict=True)
        ]
    costs = episodes.joined(token_costs) if token_costs is not None else None
    found = []
    for index, (rows, turn, rewards, value) in enumerate(
        zip(episodes.rows, episodes.turns(), paid, episodes.joined(before), strict=True)
    ):
        last = rows[-1]
        found.append(
            _one_episode(
                turn,
                rewards,
                value,
                bootstrap=float(values[last][-1]) if truncated[last] else 0.0,
                cost=costs[index] if costs is not None else np.zeros(len(turn)),
                settings=settings,
            )
        )
    advantages, targets = ([pair[place] for pair in found] for place in (0, 1))
    return Estimates(episodes.split(advantages), episodes.split(targets), before)


def _one_episode(
    turn: NDArray[np.int16],
    turn_rewards: NDArray[np.float64],
    values: NDArray[np.float64],
    *,
    bootstrap: float,
    cost: NDArray[np.float64],
    settings: AdvantageSettings,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mask = turn >= 0
    rewards = token_rewards(turn, turn_rewards) - np.where(mask, cost, 0.0)
    if settings.estimator is Estimator.REINFORCE_PP:
        return rewards_to_go(rewards, mask=mask, gamma=settings.gamma), np.zeros(len(turn))
    if settings.estimator is Estimator.GAE:
        return gae(
            rewards=rewards,
            values=values,
            mask=mask,
            gamma=settings.gamma,
            lam=settings.lam,
            bootstrap_value=bootstrap,
        )
    with_costs = np.bincount(turn[mask], weights=rewards[mask], minlength=len(turn_rewards)).astype(
        np.float64
    )
    if settings.estimator is Estimator.TURN_GAE:
        return turn_gae(
            turn_rewards=with_costs,
            values=values,
            turn=turn,
            gamma=settings.turn_gamma,
            lam=settings.lam,
            bootstrap_value=bootstrap,
        )
    return bilevel_gae(
        turn_rewards=with_costs,
        values=values,
        turn=turn,
        gamma=settings.gamma,
        lam=settings.lam,
        turn_gamma=settings.turn_gamma,
        bootstrap_value=bootstrap,
    )


def _whitened(advantages: Rows, masks: list[NDArray[np.bool_]]) -> Rows:
    flat = whiten(np.concatenate(advantages), np.concatenate(masks))
    return pieces(flat, [len(row) for row in advantages])


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


def cut_episodes(table: pa.Table) -> set[str]:
    """Episodes that have a reply cut at the token limit."""
    columns = (table[name].to_pylist() for name in ("episode", "stop_reasons"))
    return {episode for episode, reasons in zip(*columns, strict=True) if "length" in reasons}
