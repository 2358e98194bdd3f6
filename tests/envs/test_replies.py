"""Reading replies: the four cases of the specification, the shape, and any garbage."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.replies import parse_reply, render_reply

NAMES = ("Up", "Down", "Left", "Right")


def read(answer: str, *, max_actions: int = 2):
    return parse_reply(
        f"<answer>{answer}</answer>", action_names=NAMES, max_actions=max_actions, thinking=False
    )


def test_a_valid_and_an_invalid_action_keep_the_valid_one_and_are_penalised():
    reply = read("Up || Jump")
    assert reply.executable == ("Up",)
    assert reply.valid == (True, False)
    assert not reply.is_valid


def test_an_invalid_action_first_does_not_stop_the_valid_one_after_it():
    assert read("Jump || Up").executable == ("Up",)


def test_only_an_invalid_action_runs_nothing():
    reply = read("Jump")
    assert (reply.executable, reply.kept, reply.is_valid) == ((), ("Jump",), False)


def test_no_tags_run_nothing():
    reply = parse_reply("Up", action_names=NAMES, max_actions=2, thinking=False)
    assert (reply.actions, reply.executable, reply.is_valid) == ((), (), False)


def test_actions_beyond_the_limit_are_dropped_without_penalty():
    reply = read("Up || Down || Left")
    assert reply.actions == ("Up", "Down", "Left")
    assert reply.executable == ("Up", "Down")
    assert reply.is_valid


def test_an_invalid_action_beyond_the_limit_costs_nothing():
    assert read("Up || Down || Jump").is_valid


def test_letter_case_and_blanks_are_ignored_and_the_name_is_restored():
    assert read("  uP||\n DOWN ").kept == ("Up", "Down")


def test_empty_pieces_are_no_actions():
    assert read("|| Up || ||").actions == ("Up",)
    assert not read("  ").is_valid


@pytest.mark.parametrize(
    ("text", "thought", "kept"),
    [
        ("<think>a b</think><answer>Up</answer>", "a b", ("Up",)),
        ("<think>a</think> \n <answer>Up</answer> tail", "a", ("Up",)),
        ("chat <think></think><answer>Up</answer>", "", ("Up",)),
        ("<answer>Up</answer>", None, ()),
        ("<think>a<answer>Up</answer>", None, ()),
        ("<think>a</think> so <answer>Up</answer>", None, ()),
        ("<think>a</think><answer>Up", None, ()),
        ("<think>a</think>", None, ()),
        ("</think><answer>Up</answer>", None, ()),
        ("", None, ()),
    ],
)
def test_thinking_requires_a_closed_think_part_right_before_the_answer(text, thought, kept):
    reply = parse_reply(text, action_names=NAMES, max_actions=2, thinking=True)
    assert (reply.thought, reply.kept) == (thought, kept)


def test_without_thinking_a_think_part_is_allowed_but_not_read():
    reply = parse_reply(
        "<think>a</think><answer>Up</answer>", action_names=NAMES, max_actions=1, thinking=False
    )
    assert (reply.thought, reply.kept) == (None, ("Up",))


PIECES = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "||", "|", "Up", "left", " ", "\n", "<", "é"]
)
GARBAGE = st.lists(PIECES | st.text(max_size=8), max_size=30).map("".join)


@given(text=GARBAGE, max_actions=st.integers(1, 4), thinking=st.booleans())
def test_any_text_gives_a_reply_within_the_limits(text, max_actions, thinking):
    reply = parse_reply(text, action_names=NAMES, max_actions=max_actions, thinking=thinking)
    assert len(reply.kept) == len(reply.valid) == min(len(reply.actions), max_actions)
    assert set(reply.executable) <= set(NAMES)
    assert reply.is_valid == (len(reply.kept) > 0 and len(reply.executable) == len(reply.kept))
    assert all(action == action.strip() != "" for action in reply.actions)


@given(
    actions=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
    thought=st.none() | st.text(alphabet="abc 1,2|\n", max_size=20),
)
def test_a_rendered_reply_is_read_back(actions, thought):
    text = render_reply(actions, thought=thought)
    reply = parse_reply(text, action_names=NAMES, max_actions=4, thinking=thought is not None)
    assert (reply.thought, reply.kept) == (thought, tuple(actions))


@pytest.mark.parametrize(
    "unit", ["<think>", "</think><answer>", "<answer>||", "a||", "<", "|", "<think></think> "]
)
def test_a_megabyte_of_garbage_is_read_in_linear_time(unit):
    text = "<think></think><answer>" + unit * (1_000_000 // len(unit))
    for thinking in (True, False):
        start = time.perf_counter()
        parse_reply(text + "</answer>", action_names=NAMES, max_actions=2, thinking=thinking)
        assert time.perf_counter() - start < 2
