"""Warm start: a nano policy learns format and easy play from imperfect solver demonstrations.

It stands in for pre-training: reinforcement learning starts from what it leaves, and everything
that shows such a policy calls it a warm start.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from envs.base import Split
from envs.demonstrations import Demonstration, DemonstrationSettings, demonstrate
from envs.tags import Tag
from models.settings import NanoSettings, SupervisedSettings
from tasks.digest import derive_seed
from tasks.environment import EnvironmentSettings
from tasks.lanes import Lanes
from tasks.policy import write_state
from tasks.stage import Job, stage

if TYPE_CHECKING:
    from models.chat import ChatRenderer
    from models.supervised import SupervisedSequence


class WarmstartSettings(BaseModel):
    """What a nano policy is shown before reinforcement learning."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    episodes: int = Field(default=4800, ge=1, description="Demonstrated episodes.")
    environment: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of the environment in demonstrations, e.g. easier levels.",
    )
    demonstrations: DemonstrationSettings = Field(
        default=DemonstrationSettings(), description="How imperfect the demonstrations are."
    )
    supervised: SupervisedSettings = Field(
        default=SupervisedSettings(), description="How the policy is fitted to them."
    )
    seed: int = Field(
        default=0, ge=0, description="Own seed, so that all seeds of an experiment share the start."
    )
    lanes: int = Field(default=2, ge=1, description="Parts that the work is split into.")


class WarmstartJobSettings(BaseModel):
    """What determines the starting policy besides the seed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: EnvironmentSettings
    nano: NanoSettings
    warmstart: WarmstartSettings


@dataclass(frozen=True)
class DemonstrationPayload:
    """Demonstrations that one lane plays."""

    tag: Tag
    settings: DemonstrationSettings
    thinking: bool
    seeds: tuple[int, ...]


def demonstration_lane(payload: DemonstrationPayload) -> list[Demonstration]:
    """Plays the lane's demonstrations on training instances."""
    return [
        demonstrate(
            payload.tag,
            split=Split.TRAIN,
            seed=seed,
            settings=payload.settings,
            thinking=payload.thinking,
        )
        for seed in payload.seeds
    ]


def play_demonstrations(
    settings: WarmstartJobSettings, *, seed: int, lanes: Lanes
) -> list[Demonstration]:
    """All demonstrations of a warm start, in lane order."""
    warmstart, environment = settings.warmstart, settings.environment
    seeds = [derive_seed(seed, "demonstration", index) for index in range(warmstart.episodes)]
    payloads = [
        DemonstrationPayload(
            tag=environment.recipe(**warmstart.environment),
            settings=warmstart.demonstrations,
            thinking=environment.thinking,
            seeds=tuple(seeds[lane :: warmstart.lanes]),
        )
        for lane in range(warmstart.lanes)
    ]
    return [played for lane in lanes.map(demonstration_lane, payloads) for played in lane]


def supervised_sequence(
    demonstration: Demonstration, renderer: "ChatRenderer"
) -> "SupervisedSequence":
    """The ids of a demonstration, rendered as rollouts are; replies and their stop are targets."""
    from models.supervised import SupervisedSequence

    tokens: list[int] = []
    targets: list[bool] = []
    for index, turn in enumerate(demonstration.turns):
        prompt = (
            renderer.first_prompt(turn.prompt)
            if index == 0
            else renderer.next_prompt_suffix(turn.prompt, reply_stopped=True)
        )
        reply = renderer.encode_reply(turn.reply)
        tokens += [*prompt, *reply]
        targets += [False] * len(prompt) + [True] * len(reply)
    return SupervisedSequence(np.array(tokens, dtype=np.int32), np.array(targets, dtype=np.bool_))


@stage("warmstart", version=1)
def warmstart(job: Job[WarmstartJobSettings]) -> None:
    """Builds a nano policy and fits it to imperfect solver demonstrations."""
    from models.chat import ChatRenderer
    from models.nano import build_nano
    from models.policy import save_policy
    from models.supervised import fit_demonstrations

    settings = job.settings.warmstart
    demonstrations = play_demonstrations(job.settings, seed=job.seed, lanes=job.lanes)
    turns = [turn for played in demonstrations for turn in played.turns]
    texts = [text for turn in turns for text in (turn.prompt, turn.reply)]
    policy = build_nano(texts, settings=job.settings.nano, seed=job.seed)
    renderer = ChatRenderer(policy.tokenizer)
    sequences = [supervised_sequence(played, renderer) for played in demonstrations]
    fitted = fit_demonstrations(
        policy.decoder,
        sequences,
        settings=settings.supervised,
        seed=derive_seed(job.seed, "supervised"),
        num_lanes=settings.lanes,
        run=job.lanes.map,
    )
    folder = job.output("policy")
    save_policy(policy, folder)
    write_state(folder, version=0, environment=job.settings.environment)
    job.metrics = {
        "warmstart/episodes": float(len(demonstrations)),
        "warmstart/demonstrated_success": float(np.mean([item.success for item in demonstrations])),
        "warmstart/tokens": float(sum(len(item.tokens) for item in sequences)),
        "warmstart/first_loss": fitted.losses[0],
        "warmstart/last_loss": float(np.mean(fitted.losses[-20:])),
    }
