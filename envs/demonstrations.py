"""Imperfect demonstrations: an exact solver or a biased player, with random moves mixed in."""

import random
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from envs.base import Split, TextEnvironment
from envs.episode import Episode
from envs.replies import render_reply
from envs.seeding import generator
from envs.tags import Tag


class DemonstrationSettings(BaseModel):
    """How good the demonstrations are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    random_share: float = Field(
        default=0.3, ge=0, le=1, description="probability that a move is drawn uniformly at random"
    )
    naive_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of episodes played by the environment's naive player, not the solver",
    )


@dataclass(frozen=True)
class DemonstrationTurn:
    """One user message and the reply to it."""

    prompt: str
    reply: str


@dataclass(frozen=True)
class Demonstration:
    """One played episode: its turns, the seed of its instance, and whether it succeeded."""

    turns: tuple[DemonstrationTurn, ...]
    seed: int
    success: bool


def demonstrate(
    tag: Tag, *, split: Split, seed: int, settings: DemonstrationSettings, thinking: bool
) -> Demonstration:
    """Plays one episode through `Episode`, as a policy would meet it.

    A turn runs as many actions as the tag allows. They are planned on copies of the environment
    that move as intended; slips happen only when the reply is run. The thought is the environment's
    trace of exactly these actions.

    Args:
        tag: The recipe.
        split: Which instances.
        seed: Names the instance, the chance inside it and the imperfection.
        settings: How imperfect.
        thinking: Whether replies have a think part.

    Returns:
        The prompts and replies, the same for the same arguments.
    """
    draw = generator("demonstration", tag.name, split, seed)
    naive = draw.random() < settings.naive_share
    episode = Episode(tag, split=split, thinking=thinking)
    prompt: str | None = episode.start(seed=seed, noise_seed=draw.getrandbits(31))
    turns = []
    num_actions = 0
    while prompt is not None:
        actions = _plan(
            episode.environment,
            draw=draw,
            num_actions=min(tag.max_actions_per_turn, tag.max_actions - num_actions),
            random_share=settings.random_share,
            naive=naive,
        )
        thought = episode.environment.trace(actions) if thinking else None
        reply = render_reply(actions, thought=thought)
        turns.append(DemonstrationTurn(prompt=prompt, reply=reply))
        result = episode.act(reply)
        num_actions += len(result.actions)
        prompt = result.next_prompt
    return Demonstration(turns=tuple(turns), seed=seed, success=episode.success)


def _plan(
    environment: TextEnvironment,
    *,
    draw: random.Random,
    num_actions: int,
    random_share: float,
    naive: bool,
) -> list[str]:
    """Returns the next actions, until the episode is meant to end."""
    actions: list[str] = []
    while len(actions) < num_actions and not environment.over:
        if draw.random() < random_share:
            action = draw.choice(environment.action_names)
        elif naive:
            action = environment.naive_action()
        else:
            action = environment.optimal_action()
        actions.append(action)
        environment = environment.after(action)
    return actions
