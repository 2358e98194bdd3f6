"""Rollout: the policy plays `groups` x `group_size` training episodes into a shard."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from envs.base import Split
from models.settings import Sampling
from tasks.digest import derive_seed
from tasks.environment import EnvironmentSettings
from tasks.play import group_members, play
from tasks.stage import Job, stage
from tasks.summary import summarise
from tasks.trajectories import EpisodeRequest


class CutReplies(StrEnum):
    """What becomes of replies that reached the token limit before their stop token (C2)."""

    KEEP = "keep"
    """They are learned from like any other."""
    MASK = "mask"
    """Their episodes count in the group's comparison but are not learned from."""
    PENALISE = "penalise"
    """Their turn costs `rollout.cut_penalty`."""


class RolloutSettings(BaseModel):
    """How many training episodes are sampled in an iteration, and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    groups: int = Field(default=20, ge=1, description="Instances per iteration.")
    group_size: int = Field(default=8, ge=1, description="Episodes per instance.")
    sampling: Sampling = Field(
        default=Sampling(), description="Distribution that training episodes are sampled from."
    )
    max_reply_tokens: int = Field(default=64, ge=1, description="Limit of a reply, in tokens.")
    cut_replies: CutReplies = Field(
        default=CutReplies.KEEP, description="What becomes of replies cut at the limit."
    )
    cut_penalty: float = Field(
        default=0.5, ge=0, description="Cost of a cut reply when they are penalised."
    )
    lanes: int = Field(
        default=2, ge=1, description="Parts that the work is split into; workers compute them."
    )


class RolloutJobSettings(BaseModel):
    """What determines a rollout besides the policy and the seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: EnvironmentSettings
    rollout: RolloutSettings
    iteration: int
    round: int = 0  # of an iteration that samples again until enough groups are kept


def training_episodes(
    settings: RolloutSettings, *, tag: str, iteration: int, seed: int, round_: int = 0
) -> tuple[EpisodeRequest, ...]:
    """The episodes of an iteration: members of a group share the instance, not the noise.

    Args:
        settings: Numbers of groups and members.
        tag: Name of the environment's recipe.
        iteration: Every iteration has fresh instances, also after a resume (R13).
        seed: The experiment's seed.
        round_: Every round of an iteration has fresh instances.

    Returns:
        `groups * group_size` requests; a group's id names (tag, iteration, instance seed).
    """
    requests: list[EpisodeRequest] = []
    for index in range(settings.groups * round_, settings.groups * (round_ + 1)):
        env_seed = derive_seed(seed, "rollout", tag, iteration, index)
        requests += group_members(
            f"{tag}/{iteration:05d}/{env_seed:019d}",
            env_seed=env_seed,
            size=settings.group_size,
            iteration=iteration,
        )
    return tuple(requests)


@stage("rollout", version=1)
def rollout(job: Job[RolloutJobSettings]) -> None:
    """Samples the training episodes of one iteration from the policy."""
    environment, settings = job.settings.environment, job.settings.rollout
    iteration = job.settings.iteration
    table = play(
        job,
        training_episodes(
            settings,
            tag=environment.tag,
            iteration=iteration,
            seed=job.seed,
            round_=job.settings.round,
        ),
        environment=environment,
        split=Split.TRAIN,
        sampling=settings.sampling,
        max_reply_tokens=settings.max_reply_tokens,
        num_lanes=settings.lanes,
        noise_seed=derive_seed(job.seed, "rollout noise", iteration),
        cut_penalty=settings.cut_penalty if settings.cut_replies is CutReplies.PENALISE else 0.0,
        facts={"cut_replies": settings.cut_replies.value},
    )
    job.metrics = summarise(table, prefix="rollout")
    if iteration == 0 and job.settings.round == 0:
        from models.chat import check_template
        from models.policy import load_tokenizer

        report = check_template(load_tokenizer(job.inputs["policy"]))
        job.metrics["rollout/template_stable"] = float(report.is_prefix_stable)
