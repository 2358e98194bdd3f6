"""The text of a turn: what the policy is told about the state, its budget and its last reply."""

from dataclasses import dataclass
from enum import StrEnum

from envs.base import TextEnvironment
from envs.replies import render_reply


class PromptStyle(StrEnum):
    """How a turn is told.

    COMPACT: a few words of fixed order, for a policy of tiny size.
    FULL: instruction, legend, shape of the reply and length hint, for a policy that reads English.
    """

    COMPACT = "compact"
    FULL = "full"


@dataclass(frozen=True)
class Budget:
    """What is left at the start of a turn.

    Attributes:
        num_actions_left: Actions left in the episode.
        max_actions_per_turn: Most actions that a reply may run.
        reply_tokens: Length hint, in tokens.
    """

    num_actions_left: int
    max_actions_per_turn: int
    reply_tokens: int


@dataclass(frozen=True)
class LastTurn:
    """What the turn before brought: its reward, and whether its reply was valid."""

    reward: float
    valid: bool


def render_turn(
    environment: TextEnvironment,
    *,
    style: PromptStyle,
    instruction: str,
    budget: Budget,
    last_turn: LastTurn | None,
    thinking: bool,
) -> str:
    """Writes the user message of a turn.

    Args:
        environment: In the state to show.
        style: Compact or full.
        instruction: The task in words; told on the first turn of the full style.
        budget: What is left.
        last_turn: The turn before; None on the first turn.
        thinking: Whether the reply has a think part.

    Returns:
        The text, without any chat markers.
    """
    if style is PromptStyle.COMPACT:
        warning = "" if last_turn is None or last_turn.valid else "bad\n"
        return f"{warning}{environment.compact()}\nleft {budget.num_actions_left}"
    parts = []
    if last_turn is None:
        parts.append(instruction)
        if legend := environment.legend():
            parts.append(f"Signs: {legend}.")
        parts.append(f"Actions: {', '.join(environment.action_names)}.")
    else:
        parts.append(f"Reward: {last_turn.reward:g}.")
        if not last_turn.valid:
            parts.append(
                "Warning: your last reply was not valid. Keep the shape below and use only these "
                f"actions: {', '.join(environment.action_names)}."
            )
    parts.append(f"State:\n{environment.observation()}")
    left = budget.num_actions_left
    parts.append(f"You have {left} action{'' if left == 1 else 's'} left.")
    parts.append(_reply_shape(budget, thinking=thinking))
    return "\n".join(parts)


def _reply_shape(budget: Budget, *, thinking: bool) -> str:
    several = budget.max_actions_per_turn > 1
    example = render_reply(
        ["action", "action"] if several else ["action"],
        thought="your thoughts" if thinking else None,
    )
    limit = (
        f" with at most {budget.max_actions_per_turn} actions, separated by ||" if several else ""
    )
    return (
        f"Reply in the shape {example}{limit}, and nothing else. "
        f"Use at most {budget.reply_tokens} tokens."
    )
