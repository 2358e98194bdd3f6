"""Playing episodes inside a stage: what `rollout` and `evaluate` have in common."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from envs.base import Split
from models.folder import weights_digest
from models.settings import Sampling
from tasks.digest import derive_seed
from tasks.environment import EnvironmentSettings
from tasks.policy import policy_version
from tasks.shards import Kind
from tasks.stage import Job
from tasks.trajectories import EpisodeRequest, trajectory_table

ENGINE = "torch"


def group_members(
    group: str, *, env_seed: int, size: int, iteration: int
) -> Iterable[EpisodeRequest]:
    """The members of a group: they share the instance, not the noise.

    Args:
        group: Id of the group.
        env_seed: Seed of the instance.
        size: Number of members.
        iteration: Training iteration.
    """
    return [
        EpisodeRequest(
            episode=f"{group}/{member}",
            group=group,
            member=member,
            env_seed=env_seed,
            noise_seed=derive_seed(env_seed, "member", member),
            iteration=iteration,
        )
        for member in range(size)
    ]


def play(
    job: Job[Any],
    episodes: tuple[EpisodeRequest, ...],
    *,
    environment: EnvironmentSettings,
    split: Split,
    sampling: Sampling,
    max_reply_tokens: int,
    num_lanes: int,
    noise_seed: int,
    cut_penalty: float = 0.0,
    facts: Mapping[str, str] | None = None,
) -> pa.Table:
    """Plays episodes with the job's policy and writes them as the output `trajectories`.

    Args:
        job: Its input `policy` plays.
        episodes: What to play.
        environment: Where.
        split: Training or held-out instances.
        sampling: Distribution of the replies.
        max_reply_tokens: Limit of a reply.
        num_lanes: Parts that the work is split into.
        noise_seed: Of the sampling noise.
        cut_penalty: Cost of a reply that was cut at the limit.
        facts: Further metadata of the shard.

    Returns:
        The shard's table.
    """
    from tasks.collect import Collection, collect

    policy = job.inputs["policy"]
    collection = Collection(
        policy=policy,
        weight_digest=weights_digest(policy),
        policy_version=policy_version(policy),
        environment=environment,
        split=split,
        sampling=sampling,
        max_reply_tokens=max_reply_tokens,
        seed=noise_seed,
        cut_penalty=cut_penalty,
        episodes=episodes,
    )
    table = trajectory_table(collect(collection, lanes=job.lanes, num_lanes=num_lanes))
    job.write_shard(
        "trajectories",
        table,
        kind=Kind.TRAJECTORIES,
        sampling=sampling.model_dump(mode="json"),
        thinking=environment.thinking,
        engine=ENGINE,
        asked=len(episodes),
        **(facts or {}),
    )
    return table
