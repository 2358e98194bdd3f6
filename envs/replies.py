"""Reading a reply: `<think>...</think><answer>a || b</answer>`, whatever the policy wrote.

A total function: no text raises, and the work is linear in its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
SEPARATOR = "||"


@dataclass(frozen=True)
class ParsedReply:
    """What a reply says.

    Attributes:
        thought: Text of the think part; None when thinking is off or the shape is wrong.
        actions: Every non-empty action of the answer, split at `||` and trimmed.
        kept: The first `max_actions` of them; a valid one is spelt as its action name.
        valid: For each kept action, whether it is an action name.
    """

    thought: str | None
    actions: tuple[str, ...]
    kept: tuple[str, ...]
    valid: tuple[bool, ...]

    @property
    def executable(self) -> tuple[str, ...]:
        """The kept actions that are valid, in order."""
        return tuple(name for name, good in zip(self.kept, self.valid, strict=True) if good)

    @property
    def is_valid(self) -> bool:
        """Whether no penalty is due: at least one kept action, and all of them valid."""
        return bool(self.kept) and all(self.valid)


def render_reply(actions: Sequence[str], *, thought: str | None) -> str:
    """Writes a reply in the shape that `parse_reply` reads; no think part for `thought=None`.

    Example:
        >>> render_reply(["Up", "Left"], thought="at 2,3 push Left")
        '<think>at 2,3 push Left</think><answer>Up || Left</answer>'
    """
    think = "" if thought is None else f"{THINK_OPEN}{thought}{THINK_CLOSE}"
    return f"{think}{ANSWER_OPEN}{f' {SEPARATOR} '.join(actions)}{ANSWER_CLOSE}"


def parse_reply(
    text: str, *, action_names: Sequence[str], max_actions: int, thinking: bool
) -> ParsedReply:
    """Reads the actions of a reply.

    With thinking, the first think part must be closed and only blanks may stand between it and the
    answer; without, the first answer counts. Text around the two parts is ignored. A reply of
    another shape has no actions.

    Args:
        text: The decoded reply.
        action_names: What counts as an action; letter case is ignored.
        max_actions: How many actions are kept; the rest is dropped without penalty.
        thinking: Whether the think part is required.

    Returns:
        The reply's parts; never raises.
    """
    thought, answer = _parts(text, thinking=thinking)
    if answer is None:
        return ParsedReply(thought=None, actions=(), kept=(), valid=())
    actions = tuple(piece for part in answer.split(SEPARATOR) if (piece := part.strip()))
    names = {name.casefold(): name for name in action_names}
    found = [(action, names.get(action.casefold())) for action in actions[:max_actions]]
    return ParsedReply(
        thought=thought,
        actions=actions,
        kept=tuple(name or action for action, name in found),
        valid=tuple(name is not None for _, name in found),
    )


def _parts(text: str, *, thinking: bool) -> tuple[str | None, str | None]:
    """Returns (thought, answer); the answer is None when the shape is wrong."""
    thought: str | None = None
    rest = text
    if thinking:
        _, opened, rest = text.partition(THINK_OPEN)
        thought, closed, rest = rest.partition(THINK_CLOSE)
        rest = rest.lstrip()
        if not (opened and closed and rest.startswith(ANSWER_OPEN)):
            return None, None
    _, opened, rest = rest.partition(ANSWER_OPEN)
    answer, closed, _ = rest.partition(ANSWER_CLOSE)
    return (thought, answer) if opened and closed else (None, None)
