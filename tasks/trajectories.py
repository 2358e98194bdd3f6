"""Trajectories: what one episode gave, in memory and as rows of a shard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.shards import SCHEMAS, Kind, ragged


class Status(StrEnum):
    """How an episode ended; asked = finished + truncated + errored (I5)."""

    FINISHED = "finished"
    """The environment ended it."""
    TRUNCATED = "truncated"
    """A budget of turns, actions or tokens ended it."""
    ERRORED = "errored"
    """The environment failed; `error` says why, and no estimator uses its return."""


@dataclass(frozen=True)
class EpisodeRequest:
    """Which episode to play.

    Attributes:
        episode: Its id, unique over all iterations and seeds of an experiment.
        group: Id of the group of episodes that share the instance.
        member: Index inside the group.
        env_seed: Seed of the instance, equal inside a group.
        noise_seed: Seed of the member's own randomness (pay-outs, slips).
        iteration: Training iteration, or that of the evaluated policy.
    """

    episode: str
    group: str
    member: int
    env_seed: int
    noise_seed: int
    iteration: int


@dataclass(frozen=True)
class Turn:
    """One turn: the state, a user message, the sampled reply, and what came of it."""

    observation: str
    prompt: str
    reply: str
    actions: tuple[str, ...]
    valid: bool
    reward: float
    penalty: float
    stop_reason: str


@dataclass(frozen=True)
class TokenSequence:
    """One training sequence: a whole episode in the full context, else one of its turns.

    Attributes:
        tokens: Ids, prompt and replies in order; int32, shape [T].
        sampled: Whether the policy sampled the token; bool, shape [T].
        logprobs: Log-prob of the sampling distribution, NaN where not sampled; float32, shape [T].
        keep_mass: Probability that top-p and top-k kept, NaN where not sampled; float32, shape [T].
        turn: Turn of a sampled token, counted from `first_turn`, -1 elsewhere; int16, shape [T].
        first_turn: Turn of the episode that the sequence's own turns begin with.
        num_turns: Number of its own turns.
    """

    tokens: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    keep_mass: NDArray[np.float32]
    turn: NDArray[np.int16]
    first_turn: int
    num_turns: int


@dataclass
class Trajectory:
    """One episode: its training sequences, which share its turns among them, and its outcome.

    Attributes:
        level: Canonical text of the instance.
        stratum: Kind of level, for stratified reports.
    """

    request: EpisodeRequest
    tag: str
    split: str
    policy_version: int
    weight_digest: str
    sequences: list[TokenSequence]
    level: str
    stratum: str
    turns: list[Turn]
    status: Status
    success: bool
    terminated: bool
    truncated: bool
    error: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


def trajectory_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """Rows of a trajectory shard, one per training sequence, in the order given."""
    schema = SCHEMAS[Kind.TRAJECTORIES]
    sequences = [sequence for row in trajectories for sequence in row.sequences]
    per_token = {
        "tokens": ragged([item.tokens for item in sequences], pa.int32()),
        "sampled": ragged([item.sampled for item in sequences], pa.bool_()),
        "logprobs": ragged([item.logprobs for item in sequences], pa.float32(), nullable=True),
        "keep_mass": ragged([item.keep_mass for item in sequences], pa.float32(), nullable=True),
        "turn": ragged([item.turn for item in sequences], pa.int16()),
    }
    rows = [
        _row(trajectory, index, sequence)
        for trajectory in trajectories
        for index, sequence in enumerate(trajectory.sequences)
    ]
    columns = [
        per_token[column.name]
        if column.name in per_token
        else pa.array([row[column.name] for row in rows], type=column.type)
        for column in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _row(row: Trajectory, index: int, sequence: TokenSequence) -> dict[str, object]:
    request = row.request
    turns = row.turns[sequence.first_turn : sequence.first_turn + sequence.num_turns]
    return {
        "episode": request.episode,
        "group": request.group,
        "member": request.member,
        "sequence": index,
        "first_turn": sequence.first_turn,
        "weight": 1.0 / len(row.sequences),
        "iteration": request.iteration,
        "tag": row.tag,
        "split": row.split,
        "env_seed": request.env_seed,
        "noise_seed": request.noise_seed,
        "level": row.level,
        "stratum": row.stratum,
        "policy_version": row.policy_version,
        "weight_digest": row.weight_digest,
        "observations": [turn.observation for turn in turns],
        "prompts": [turn.prompt for turn in turns],
        "replies": [turn.reply for turn in turns],
        "actions": [list(turn.actions) for turn in turns],
        "valid": [turn.valid for turn in turns],
        "rewards": [turn.reward for turn in turns],
        "penalties": [turn.penalty for turn in turns],
        "stop_reasons": [turn.stop_reason for turn in turns],
        "return": sum(turn.reward for turn in row.turns),
        "penalty": sum(turn.penalty for turn in row.turns),
        "success": row.success,
        "terminated": row.terminated,
        "truncated": row.truncated,
        "status": row.status.value,
        "error": row.error,
        "metrics": sorted(row.metrics.items()),
    }
