"""Evaluate: success on held-out instances, with intervals, overall and by kind of level."""

from collections import defaultdict

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from envs.base import Split
from models.settings import Sampling
from tasks.digest import derive_seed
from tasks.environment import EnvironmentSettings
from tasks.intervals import pass_at_k, wilson_interval
from tasks.play import group_members, play
from tasks.stage import Job, stage
from tasks.summary import episode_rows, summarise
from tasks.trajectories import EpisodeRequest


class EvaluateSettings(BaseModel):
    """Which held-out episodes a policy plays, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: int = Field(default=256, ge=1, description="Held-out instances.")
    samples: int = Field(default=1, ge=1, description="Episodes per instance; pass@k needs k.")
    sampling: Sampling = Field(
        default=Sampling(temperature=0.5), description="Distribution that replies are sampled from."
    )
    seed: int = Field(
        default=0, ge=0, description="Chooses the instances: the same for all policies and seeds."
    )


class EvaluateJobSettings(BaseModel):
    """What determines an evaluation besides the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: EnvironmentSettings
    evaluate: EvaluateSettings
    max_reply_tokens: int
    lanes: int
    iteration: int


def evaluation_episodes(
    settings: EvaluateSettings, *, tag: str, iteration: int
) -> tuple[EpisodeRequest, ...]:
    """The held-out episodes; instances depend on the tag and `settings.seed` only."""
    requests: list[EpisodeRequest] = []
    for index in range(settings.instances):
        env_seed = derive_seed(settings.seed, "evaluate", tag, index)
        requests += group_members(
            f"{tag}/evaluation/{env_seed:019d}",
            env_seed=env_seed,
            size=settings.samples,
            iteration=iteration,
        )
    return tuple(requests)


def evaluation_metrics(table: pa.Table) -> dict[str, float]:
    """Metrics of an evaluation: the summary, Wilson intervals, pass@k, success by kind of level.

    Args:
        table: A trajectory shard of held-out episodes.

    Returns:
        `evaluate/success`, `…/success_low`, `…/success_high` (95 %, episodes as trials),
        `evaluate/pass@k` for k = 2, 4, 8 … up to the samples per instance, and
        `evaluate/by/KIND/success`, `…/low`, `…/high`, `…/episodes`.
    """
    episodes = episode_rows(table)
    success = episodes["success"].to_numpy(zero_copy_only=False)
    metrics = summarise(table, prefix="evaluate")
    low, high = wilson_interval(int(success.sum()), len(success))
    metrics |= {"evaluate/success_low": low, "evaluate/success_high": high}
    by_instance: defaultdict[str, list[bool]] = defaultdict(list)
    by_kind: defaultdict[str, list[bool]] = defaultdict(list)
    for group, kind, won in zip(
        episodes["group"].to_pylist(), episodes["stratum"].to_pylist(), success, strict=True
    ):
        by_instance[group].append(bool(won))
        by_kind[kind].append(bool(won))
    samples = min(len(wins) for wins in by_instance.values())
    k = 2
    while k <= samples:
        estimates = [pass_at_k(len(wins), sum(wins), k) for wins in by_instance.values()]
        metrics[f"evaluate/pass@{k}"] = float(np.mean(estimates))
        k *= 2
    for kind, wins in sorted(by_kind.items()):
        if kind:
            low, high = wilson_interval(sum(wins), len(wins))
            prefix = f"evaluate/by/{kind}"
            metrics[f"{prefix}/success"] = sum(wins) / len(wins)
            metrics[f"{prefix}/low"], metrics[f"{prefix}/high"] = low, high
            metrics[f"{prefix}/episodes"] = float(len(wins))
    return metrics


@stage("evaluate", version=1)
def evaluate(job: Job[EvaluateJobSettings]) -> None:
    """Plays held-out episodes with the policy."""
    environment, settings = job.settings.environment, job.settings.evaluate
    table = play(
        job,
        evaluation_episodes(settings, tag=environment.tag, iteration=job.settings.iteration),
        environment=environment,
        split=Split.EVALUATION,
        sampling=settings.sampling,
        max_reply_tokens=job.settings.max_reply_tokens,
        num_lanes=job.settings.lanes,
        noise_seed=derive_seed(settings.seed, "evaluate noise"),
    )
    job.metrics = evaluation_metrics(table)
