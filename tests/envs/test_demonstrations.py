"""Demonstrations: repeatable, valid, as good as asked, and honest in their thoughts."""

import re

import pytest

from envs.base import Split
from envs.demonstrations import DemonstrationSettings, demonstrate
from envs.replies import parse_reply
from envs.tags import get_tag

PERFECT = DemonstrationSettings(random_share=0)


def play(tag, settings, *, num_episodes=100, thinking=True, split=Split.TRAIN):
    return [
        demonstrate(tag, split=split, seed=seed, settings=settings, thinking=thinking)
        for seed in range(num_episodes)
    ]


def success(demonstrations) -> float:
    return sum(demo.success for demo in demonstrations) / len(demonstrations)


@pytest.mark.parametrize("name", ["ShortSokoban", "FrozenLake", "Bandit", "LargerSokoban"])
@pytest.mark.parametrize("thinking", [True, False])
def test_demonstrations_repeat_and_every_reply_is_valid(name, thinking):
    tag = get_tag(name)
    settings = DemonstrationSettings(naive_share=0.5)
    once = play(tag, settings, num_episodes=20, thinking=thinking)
    assert once == play(tag, settings, num_episodes=20, thinking=thinking)
    names = {
        "Bandit": None,
        "FrozenLake": ("Left", "Down", "Right", "Up"),
    }.get(name, ("Up", "Down", "Left", "Right"))
    for demo in once:
        assert 1 <= len(demo.turns) <= tag.max_turns
        for turn in demo.turns:
            arms = tuple(re.findall(r"[A-Z][a-z]+", turn.reply))[-1:]
            reply = parse_reply(
                turn.reply,
                action_names=names or arms,
                max_actions=tag.max_actions_per_turn,
                thinking=thinking,
            )
            assert reply.is_valid
            assert (reply.thought is not None) is thinking


def test_a_perfect_player_solves_every_short_level_in_its_length():
    demonstrations = play(get_tag("ShortSokoban"), PERFECT)
    assert success(demonstrations) == 1.0
    assert max(len(demo.turns) for demo in demonstrations) == 2
    lone = play(get_tag("ShortSokoban").with_overrides(max_actions_per_turn=1), PERFECT)
    assert {len(demo.turns) for demo in lone} == {2, 3, 4}


def test_more_random_moves_mean_less_success():
    rates = [
        success(play(get_tag("SimpleSokoban"), DemonstrationSettings(random_share=share)))
        for share in (0.0, 0.3, 1.0)
    ]
    assert rates[0] > rates[1] + 0.1 > rates[2] + 0.2


def test_the_naive_share_is_a_share_of_episodes():
    tag = get_tag("FrozenLake").with_overrides(settings={"intended_probability": 1.0})
    rates = [
        success(
            play(tag, DemonstrationSettings(random_share=0, naive_share=share), num_episodes=200)
        )
        for share in (0.0, 0.6, 1.0)
    ]
    assert rates[0] == 1.0
    assert rates[1] == pytest.approx(0.4 * rates[0] + 0.6 * rates[2], abs=0.08)
    assert rates[2] < 0.5


def test_the_thought_of_a_lake_names_where_the_actions_end():
    tag = get_tag("FrozenLake").with_overrides(
        prompt="compact", settings={"intended_probability": 1.0}
    )
    checked = 0
    for demo in play(tag, DemonstrationSettings(), num_episodes=60):
        for turn, following in zip(demo.turns, demo.turns[1:], strict=False):
            end = re.search(r"end (\d,\d)", turn.reply).group(1)
            assert following.prompt.startswith(f"P {end} ")
            checked += 1
    assert checked > 50


def test_the_thought_of_a_warehouse_names_a_push_of_a_box():
    tag = get_tag("ShortSokoban")
    step = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
    for demo in play(tag, PERFECT):
        for turn in demo.turns:
            row, column, direction = re.search(r"at (\d),(\d) push (\w+)", turn.reply).groups()
            box = tuple(map(int, re.search(r"B (\d),(\d)", turn.prompt).groups()))
            down, right = step[direction]
            assert box == (int(row) + down, int(column) + right)


def test_a_compact_turn_is_short():
    for name in ("ShortSokoban", "FrozenLake", "Bandit"):
        tag = get_tag(name).with_overrides(prompt="compact")
        for demo in play(tag, PERFECT, num_episodes=30):
            assert all(len(turn.prompt) < 80 for turn in demo.turns)
            assert all(len(turn.reply) < 100 for turn in demo.turns)
