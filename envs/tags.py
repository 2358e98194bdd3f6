"""The table of tags: a tag is a named recipe of environment, settings, instruction and budgets."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from envs.base import ObservationFormat, Split, TextEnvironment
from envs.entry_points import is_entry_point, load_entry_point
from envs.errors import TagSettingsError, UnknownTagError
from envs.prompts import PromptStyle
from envs.registration import (
    BANDIT,
    FROZEN_LAKE,
    SOKOBAN,
    environment_class,
    register_all,
)

__all__ = ["TAGS", "PromptStyle", "Tag", "get_tag", "make_environment"]

register_all()


@dataclass(frozen=True)
class Tag:
    """A named recipe.

    Attributes:
        name: Name in the table.
        environment: Gymnasium id, for instance `starpo/Sokoban-v0`, or a user's import path.
        settings: Values of the environment's own settings class; the rest keeps its default.
        instruction: The task in words, for the full prompt.
        max_turns: Replies per episode.
        max_actions: Actions per episode.
        max_actions_per_turn: Actions that one reply may run.
        prompt: Compact or full.
        reply_tokens_hint: Length of a reply that the prompt asks for, in tokens.
        render_mode: Gymnasium's render mode: `ansi` or `rgb_array`; None draws text.
        compact_settings: Defaults that replace those in `settings` while the prompt is compact, for
            a policy that knows no language.
    """

    name: str
    environment: str
    settings: Mapping[str, object]
    instruction: str
    max_turns: int = 5
    max_actions: int = 10
    max_actions_per_turn: int = 2
    prompt: PromptStyle = PromptStyle.FULL
    reply_tokens_hint: int = 200
    render_mode: str | None = None
    compact_settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_actions", "max_actions_per_turn", "reply_tokens_hint"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise TagSettingsError(
                    f"tag `{self.name}`: {name}={value!r}\nhint: allowed is an integer from 1 up"
                )
        if self.max_actions_per_turn > self.max_actions:
            raise TagSettingsError(
                f"tag `{self.name}`: max_actions_per_turn={self.max_actions_per_turn} exceeds "
                f"max_actions={self.max_actions}\nhint: lower the first or raise the second"
            )
        self.environment_settings()

    def environment_settings(self) -> BaseModel:
        """Returns the validated settings of the environment.

        Raises:
            TagSettingsError: An unknown setting, or a value out of range; names what is allowed.
        """
        settings_class = environment_class(self.environment).settings_class
        compact = self.compact_settings if self.prompt is PromptStyle.COMPACT else {}
        try:
            return settings_class.model_validate({**self.settings, **compact})
        except ValidationError as error:
            found = "; ".join(_describe(detail) for detail in error.errors())
            allowed = ", ".join(f"`{name}`" for name in settings_class.model_fields)
            raise TagSettingsError(
                f"tag `{self.name}`: {found}\nhint: settings of `{self.environment}` are {allowed}"
            ) from error

    def with_overrides(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        instruction: str | None = None,
        max_turns: int | None = None,
        max_actions: int | None = None,
        max_actions_per_turn: int | None = None,
        prompt: PromptStyle | str | None = None,
        reply_tokens_hint: int | None = None,
    ) -> Self:
        """Returns this tag with some values replaced; `settings` is merged key by key.

        Raises:
            TagSettingsError: An unknown key or a value that is not allowed.
        """
        changes: dict[str, Any] = {
            "instruction": instruction,
            "max_turns": max_turns,
            "max_actions": max_actions,
            "max_actions_per_turn": max_actions_per_turn,
            "reply_tokens_hint": reply_tokens_hint,
        }
        changes = {name: value for name, value in changes.items() if value is not None}
        if prompt is not None:
            changes["prompt"] = _prompt_style(self.name, prompt)
        if settings:
            changes["settings"] = {**self.settings, **settings}
            changes["compact_settings"] = {
                name: value for name, value in self.compact_settings.items() if name not in settings
            }
        return dataclasses.replace(self, **changes)


def _prompt_style(name: str, prompt: PromptStyle | str) -> PromptStyle:
    if prompt not in list(PromptStyle):
        allowed = ", ".join(f"`{style}`" for style in PromptStyle)
        raise TagSettingsError(f"tag `{name}`: prompt=`{prompt}`\nhint: allowed are {allowed}")
    return PromptStyle(prompt)


def _describe(detail: Mapping[str, Any]) -> str:
    path = ".".join(map(str, detail["loc"])) or "settings"
    if detail["type"] == "extra_forbidden":
        return f"unknown setting `{path}` (value {detail['input']!r})"
    if detail["loc"]:
        return f"setting `{path}`={detail['input']!r}: {detail['msg']}"
    return str(detail["msg"])


_BANDIT_TEXT = (
    "You play one round of a two-armed bandit. Each arm is named after a profession; the names "
    "hint at how the arms pay. Pull the arm with the larger expected reward."
)
_SOKOBAN_TEXT = (
    "You solve a Sokoban puzzle: push every box onto a target. You push a box by walking into it; "
    "you cannot pull, and a box moves only into a free cell. Plan ahead and use few steps."
)
_LAKE_TEXT = (
    "You cross a frozen lake. Reach the goal and stay out of the holes. The ice is slippery: a "
    "step may take you to the side of the direction you choose, never back."
)
_SIMPLE_SOKOBAN: Mapping[str, object] = {"search_depth": 300, "max_solution": 10}


def _table(*tags: Tag) -> Mapping[str, Tag]:
    return MappingProxyType({tag.name: tag for tag in tags})


TAGS: Mapping[str, Tag] = _table(
    Tag(
        name="Bandit",
        environment=BANDIT,
        settings={},
        instruction=_BANDIT_TEXT,
        max_turns=1,
        max_actions=1,
        max_actions_per_turn=1,
        compact_settings={"names": "recombined"},
    ),
    Tag(
        name="BanditReversed",
        environment=BANDIT,
        settings={"swapped": True},
        instruction=_BANDIT_TEXT,
        max_turns=1,
        max_actions=1,
        max_actions_per_turn=1,
        compact_settings={"names": "recombined"},
    ),
    Tag(
        name="SimpleSokoban",
        environment=SOKOBAN,
        settings=_SIMPLE_SOKOBAN,
        instruction=_SOKOBAN_TEXT,
    ),
    Tag(
        name="CoordSokoban",
        environment=SOKOBAN,
        settings={**_SIMPLE_SOKOBAN, "observation": ObservationFormat.GRID_COORD},
        instruction=_SOKOBAN_TEXT,
    ),
    Tag(
        name="LargerSokoban",
        environment=SOKOBAN,
        settings={"height": 8, "width": 8, "boxes": 2, "search_depth": 10, "min_solution": 2},
        instruction=_SOKOBAN_TEXT,
    ),
    Tag(
        name="SokobanOtherGlyphs",
        environment=SOKOBAN,
        settings={**_SIMPLE_SOKOBAN, "glyphs": "W.GBCA@"},
        instruction=_SOKOBAN_TEXT,
    ),
    Tag(
        name="VisualSokoban",
        environment=SOKOBAN,
        settings=_SIMPLE_SOKOBAN,
        instruction=_SOKOBAN_TEXT,
        render_mode="rgb_array",
    ),
    Tag(
        name="ShortSokoban",
        environment=SOKOBAN,
        settings={"min_solution": 2, "max_solution": 4},
        instruction=_SOKOBAN_TEXT,
        prompt=PromptStyle.COMPACT,
        reply_tokens_hint=40,
    ),
    Tag(name="FrozenLake", environment=FROZEN_LAKE, settings={}, instruction=_LAKE_TEXT),
    Tag(
        name="CoordFrozenLake",
        environment=FROZEN_LAKE,
        settings={"observation": ObservationFormat.GRID_COORD},
        instruction=_LAKE_TEXT,
    ),
)
"""Every tag by name."""


def get_tag(name: str) -> Tag:
    """Returns the tag of that name, or a user's by import path (`package.module:name`).

    The path names a `Tag`, or a `TextEnvironment` class, which becomes a tag with its defaults.

    Raises:
        UnknownTagError: There is none; suggests the nearest name and lists all.
        EntryPointError: The import path names nothing.
        TagSettingsError: It names neither a tag nor an environment.
    """
    if is_entry_point(name):
        return _users_tag(name)
    if name not in TAGS:
        raise UnknownTagError(name, known=TAGS)
    return TAGS[name]


def _users_tag(path: str) -> Tag:
    found = load_entry_point(path)
    if isinstance(found, Tag):
        return dataclasses.replace(found, name=path)
    if isinstance(found, type) and issubclass(found, TextEnvironment):
        instruction = (found.__doc__ or path).strip().partition("\n")[0]
        return Tag(name=path, environment=path, settings={}, instruction=instruction)
    raise TagSettingsError(
        f"`{path}` is a {type(found).__name__}\nhint: name a `Tag` or a `TextEnvironment` class"
    )


def make_environment(tag: Tag, *, split: Split) -> TextEnvironment:
    """Returns a new environment of the tag's recipe, not yet reset."""
    if is_entry_point(tag.name):
        load_entry_point(tag.name)  # a tag that came from another process has not been imported
    environment: TextEnvironment = environment_class(tag.environment)(
        tag.environment_settings(),
        split=split,
        render_mode=tag.render_mode,
    )
    return environment
