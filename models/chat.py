"""Chat rendering on token ids, append-only: what was sampled is never decoded and encoded again.

A conversation grows by ids: the prompt, the sampled reply, then the ids of the new user text alone
between the markers that the template puts there. A template that rewrites earlier turns (Qwen3
removes earlier `<think>` parts) therefore cannot change what is trained on; `check_template` says
whether a template would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from models.errors import TemplateError

_USER, _REPLY, _NEXT = "starpo-user-one", "starpo-reply", "starpo-user-two"


class ChatRenderer:
    """Renders the turns of one tokenizer's chat template as ids.

    Args:
        tokenizer: With a chat template and a stop token (`eos_token`).

    Raises:
        TemplateError: The template hides a message, or the stop token does not end a reply.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        if tokenizer.chat_template is None or tokenizer.eos_token is None:
            raise TemplateError(
                "the tokenizer has no chat template or no stop token\n"
                "hint: add `chat_template.jinja` and `eos_token` to the policy folder"
            )
        self.stop: int = tokenizer.eos_token_id
        first = _render(tokenizer, [("user", _USER)])
        self._before_first, self._after_user = _halves(first, _USER)
        both = _render(tokenizer, [("user", _USER), ("assistant", _REPLY), ("user", _NEXT)])
        after_reply = _halves(both, _REPLY)[1]
        markers, self._after_next = _halves(after_reply, _NEXT)
        if not markers.startswith(tokenizer.eos_token):
            raise TemplateError(
                f"the template ends a reply with {markers[:20]!r}, "
                f"not with the stop token {tokenizer.eos_token!r}\n"
                "hint: set `eos_token` in tokenizer_config.json to the template's end marker"
            )
        self._before_next = self._markers(markers.removeprefix(tokenizer.eos_token))
        self._start, self._end = self._markers(self._before_first), self._markers(self._after_user)
        self._next_end = self._markers(self._after_next)

    def first_prompt(self, user_text: str) -> list[int]:
        """Ids of the first user message, up to where the reply begins."""
        return [*self._start, *self._text(user_text), *self._end]

    def next_prompt_suffix(self, user_text: str, *, reply_stopped: bool) -> list[int]:
        """Ids to append after a sampled reply for the next user message.

        Args:
            user_text: The new message; encoded alone, markers in it are plain text.
            reply_stopped: Whether the reply ended with the sampled stop token. If not, the stop
                token is appended here, unsampled and so not in the loss (T11, T12).
        """
        stop = [] if reply_stopped else [self.stop]
        return [*stop, *self._before_next, *self._text(user_text), *self._next_end]

    def encode_reply(self, text: str) -> list[int]:
        """Ids of a demonstrated reply and the stop token."""
        return [*self._text(text), self.stop]

    def decode_reply(self, tokens: Sequence[int] | NDArray[np.int32]) -> str:
        """Text of a sampled reply, without the stop token that ended it."""
        ids = [int(token) for token in tokens]
        if ids and ids[-1] == self.stop:
            ids.pop()
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _text(self, text: str) -> list[int]:
        """Ids of text in which no special token is recognised."""
        ids: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return ids

    def _markers(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


@dataclass(frozen=True)
class TemplateReport:
    """Whether a template extends what it rendered before.

    Attributes:
        is_prefix_stable: Each prompt and its reply begin the next prompt.
        turn: First turn whose past was rewritten, else None.
        first_difference: Index of the first differing character there.
        message: One sentence for the log.
    """

    is_prefix_stable: bool
    turn: int | None
    first_difference: int | None
    message: str


def check_template(tokenizer: PreTrainedTokenizerFast, *, num_turns: int = 3) -> TemplateReport:
    """Renders 1 to n turns and looks for a past that changes (T1, T2, T7)."""
    reply = "<think>plan {0}</think><answer>act {0}</answer>"
    messages = [("user", "state 0")]
    past = _render(tokenizer, messages)
    for turn in range(1, num_turns):
        said = past + reply.format(turn)
        messages += [("assistant", reply.format(turn)), ("user", f"state {turn}")]
        past = _render(tokenizer, messages)
        difference = first_difference(said, past[: len(said)])
        if difference is not None:
            return TemplateReport(
                is_prefix_stable=False,
                turn=turn,
                first_difference=difference,
                message=f"the chat template rewrites the past at turn {turn}, character "
                f"{difference}; turns are appended as ids instead, so sampled ids stay as they are",
            )
    return TemplateReport(
        is_prefix_stable=True,
        turn=None,
        first_difference=None,
        message="the chat template extends the past, turn by turn",
    )


def first_difference(first: Sequence[object], second: Sequence[object]) -> int | None:
    """Index of the first element in which two sequences differ; None when they are equal."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return None if len(first) == len(second) else min(len(first), len(second))


def _render(tokenizer: PreTrainedTokenizerFast, messages: list[tuple[str, str]]) -> str:
    text: str = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in messages],
        tokenize=False,
        add_generation_prompt=True,
    )
    return text


def _halves(text: str, content: str) -> tuple[str, str]:
    before, found, after = text.partition(content)
    if not found:
        raise TemplateError(f"the chat template leaves out a message: {text[:200]!r}")
    return before, after
