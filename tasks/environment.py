"""Settings of the environment that an experiment runs on: a tag and what differs from it."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envs.errors import EnvsError
from envs.rewards import RewardTiming, load_reward
from envs.tags import PromptStyle, Tag, get_tag


class Context(StrEnum):
    """How much of an episode a reply is sampled from, in training and evaluation."""

    FULL = "full"
    """All turns so far; an episode is one training sequence."""
    LIMITED = "limited"
    """The last `env.context_turns` turns; each turn is a training sequence of its own."""
    SINGLE = "single"
    """The turn's own message alone; each turn is a training sequence of its own."""


class EnvironmentSettings(BaseModel):
    """Which environment, with which budgets and prompts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tag: str = Field(
        description="Name of the environment's recipe, or `package.module:name` of a user's own."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="The environment's own settings that differ from the tag."
    )
    prompt: PromptStyle | None = Field(
        default=None, description="compact (tiny policies) or full; the tag's own when not given."
    )
    max_turns: int | None = Field(default=None, ge=1, description="Turns per episode.")
    max_actions: int | None = Field(default=None, ge=1, description="Actions per episode.")
    max_actions_per_turn: int | None = Field(default=None, ge=1, description="Actions per turn.")
    thinking: bool = Field(
        default=True, description="Whether a reply has a <think> part, in training and evaluation."
    )
    context: Context = Field(
        default=Context.FULL, description="What a reply is sampled from: full, limited or single."
    )
    context_turns: int = Field(
        default=3, ge=2, description="Turns in a limited context, the current one included."
    )
    reward: str | None = Field(
        default=None,
        description="Reward function, `package.module:name`; the environment's own when not given.",
    )
    reward_timing: RewardTiming = Field(
        default=RewardTiming.TURN, description="Rewards are paid per turn, or summed at the end."
    )
    invalid_penalty: float = Field(
        default=0.1, ge=0, description="Subtracted once per turn with an invalid action."
    )

    @model_validator(mode="after")
    def _check_tag(self) -> "EnvironmentSettings":
        try:
            self.recipe()
            if self.reward is not None:
                load_reward(self.reward)
        except EnvsError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def turns_seen(self) -> int | None:
        """Turns that a reply is sampled from; None for all."""
        return {Context.FULL: None, Context.SINGLE: 1}.get(self.context, self.context_turns)

    def recipe(self, **settings: Any) -> Tag:
        """The tag with these settings applied.

        Args:
            **settings: Further settings of the environment, e.g. an easier range of levels.
        """
        changes = {
            name: value
            for name in ("prompt", "max_turns", "max_actions", "max_actions_per_turn")
            if (value := getattr(self, name)) is not None
        }
        return get_tag(self.tag).with_overrides(settings={**self.settings, **settings}, **changes)
