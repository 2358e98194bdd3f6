"""Episodes: budgets, penalties, end flags and the texts of turns."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import Split
from envs.episode import Episode
from envs.errors import EpisodeOverError
from envs.frozen_lake import FrozenLake
from envs.registration import register_environment
from envs.tags import TAGS, Tag, get_tag

STILL = "<answer>Up || Up</answer>"


class Garden(FrozenLake):
    """An environment that is a success from the first step on and never ends by itself."""

    def _apply(self, index):
        self._success = True
        return 0.5, False, False, True


register_environment("test/Garden-v0", environment=Garden)


def start(tag: str | Tag = "ShortSokoban", *, seed: int = 0, **values) -> Episode:
    recipe = get_tag(tag) if isinstance(tag, str) else tag
    episode = Episode(recipe, split=Split.TRAIN, thinking=False, **values)
    episode.first = episode.start(seed=seed, noise_seed=0)
    return episode


def solve(episode: Episode) -> str:
    """Returns the reply that plays optimally for one turn."""
    environment, actions = episode.environment, []
    while len(actions) < episode.tag.max_actions_per_turn and not environment.over:
        actions.append(environment.optimal_action())
        environment = environment.after(actions[-1])
    return f"<answer>{' || '.join(actions)}</answer>"


def test_C4_malformed_action_is_counted_and_answered_with_a_warning():
    for style, warning in (("compact", "bad\n"), ("full", "Warning: your last reply")):
        episode = start(get_tag("SimpleSokoban").with_overrides(prompt=style, max_turns=9))
        for reply in ("\x00<answer>", "<answer>Jump</answer>", "Up", ""):
            result = episode.act(reply)
            assert (result.actions, result.valid, result.penalty) == ((), False, -0.1)
            assert (result.reward, result.done) == (0.0, False)
            assert warning in result.next_prompt
            assert "left 10" in result.next_prompt or "10 actions left" in result.next_prompt
        assert warning not in episode.act("<answer>Up</answer>").next_prompt
        assert episode.metrics["num_invalid_turns"] == 4
        assert episode.metrics["penalty"] == pytest.approx(-0.4)


@pytest.mark.parametrize(
    ("reply", "actions", "penalty"),
    [
        ("<answer>Up || Jump</answer>", ("Up",), -0.1),
        ("<answer>Jump</answer>", (), -0.1),
        ("Up", (), -0.1),
        ("<answer>Up || Up || Up</answer>", ("Up", "Up"), 0.0),
    ],
)
def test_the_four_cases_of_the_specification(reply, actions, penalty):
    result = start().act(reply)
    assert (result.actions, result.penalty) == (actions, penalty)


def test_R15_truncated_is_not_failure():
    garden = Tag(
        name="Garden", environment="test/Garden-v0", settings={}, instruction="", max_turns=2
    )
    episode = start(garden)
    episode.act("<answer>Left</answer>")
    result = episode.act("<answer>Left</answer>")
    assert (result.terminated, result.truncated) == (False, True)
    assert episode.success


def test_R15_terminated_is_not_success():
    tag = get_tag("FrozenLake").with_overrides(
        settings={"maps": (("SG", "HF"), ("SFG",)), "intended_probability": 1.0}
    )
    for seed in range(50):
        episode = start(tag, seed=seed)
        if "O" in episode.observations[0]:
            result = episode.act("<answer>Down || Up</answer>")
            assert result.actions == ("Down",)
            assert (result.terminated, result.truncated, episode.success) == (True, False, False)
            return
    episode = Episode(tag, split=Split.EVALUATION, thinking=False)
    episode.start(seed=0, noise_seed=0)
    assert episode.act("<answer>Down</answer>").terminated
    assert not episode.success


def test_running_out_of_turns_truncates():
    episode = start()
    results = [episode.act("nothing") for _ in range(5)]
    assert [result.truncated for result in results] == [False] * 4 + [True]
    assert results[-1].next_prompt is None
    assert (episode.success, episode.terminated, episode.turns) == (False, False, 5)


def test_running_out_of_actions_truncates_and_cuts_the_turn():
    episode = start(get_tag("ShortSokoban").with_overrides(max_actions=3))
    assert episode.act(STILL).next_prompt.endswith("left 1")
    result = episode.act(STILL)
    assert (result.actions, result.truncated, result.terminated) == (("Up",), True, False)
    assert result.valid


def test_solving_with_the_last_action_and_turn_terminates():
    tag = get_tag("ShortSokoban").with_overrides(
        max_actions=2, max_turns=1, settings={"max_solution": 2}
    )
    for seed in range(10):
        episode = start(tag, seed=seed)
        result = episode.act(solve(episode))
        assert (result.terminated, result.truncated) == (True, False)
        assert episode.success
        assert result.reward == pytest.approx(10.8)


def test_actions_after_the_end_of_the_episode_are_not_run():
    tag = get_tag("ShortSokoban").with_overrides(
        max_actions_per_turn=10, settings={"max_solution": 2}
    )
    episode = start(tag)
    optimal = solve(episode)
    result = episode.act(optimal.replace("</answer>", " || Up || Down</answer>"))
    assert (len(result.actions), result.valid, result.done) == (2, True, True)


def test_the_penalty_is_a_setting_and_stays_apart_from_the_reward():
    result = start(invalid_penalty=0.5).act("<answer>Up || Jump</answer>")
    assert result.penalty == -0.5
    assert result.reward == pytest.approx(-0.1)
    with pytest.raises(ValueError, match="invalid_penalty=-1"):
        start(invalid_penalty=-1)
    with pytest.raises(ValueError, match="invalid_penalty=nan"):
        start(invalid_penalty=float("nan"))


def test_a_reply_before_the_start_or_after_the_end_is_an_error():
    episode = Episode(get_tag("Bandit"), split=Split.TRAIN, thinking=False)
    with pytest.raises(EpisodeOverError):
        episode.act("")
    episode.start(seed=0, noise_seed=0)
    episode.act("")
    with pytest.raises(EpisodeOverError):
        episode.act("")


def test_an_episode_starts_anew_from_its_seed():
    episode = start(seed=3)
    episode.act(STILL)
    first = episode.first
    assert episode.start(seed=3, noise_seed=0) == first
    assert (episode.turns, len(episode.observations)) == (0, 1)


@pytest.mark.parametrize("name", sorted(TAGS))
def test_the_full_prompt_tells_task_legend_actions_budget_and_shape(name):
    tag = get_tag(name).with_overrides(prompt="full")
    for thinking in (True, False):
        episode = Episode(tag, split=Split.TRAIN, thinking=thinking)
        text = episode.start(seed=0, noise_seed=0)
        for part in (
            tag.instruction,
            episode.environment.legend(),
            ", ".join(episode.environment.action_names),
            episode.environment.observation(),
            f"{tag.max_actions} action",
            f"{tag.reply_tokens_hint} tokens",
        ):
            assert part in text
        assert ("<think>" in text) is thinking
        assert ("||" in text) is (tag.max_actions_per_turn > 1)


def test_later_full_prompts_tell_the_reward_and_not_the_task():
    episode = start("SimpleSokoban")
    text = episode.act(STILL).next_prompt
    assert text.startswith("Reward: -0.2.")
    assert episode.tag.instruction not in text


def test_the_compact_prompt_is_state_and_budget():
    episode = start()
    assert episode.first == f"{episode.environment.compact()}\nleft 10"


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(TAGS)),
    seed=st.integers(0, 1_000),
    replies=st.lists(
        st.sampled_from(
            [STILL, "<answer>Left || Right || Down</answer>", "<answer>Up||x</answer>", "junk"]
        ),
        min_size=5,
        max_size=5,
    ),
)
def test_the_numbers_of_an_episode_add_up(name, seed, replies):
    episode = start(name, seed=seed)
    results = []
    for reply in replies:
        results.append(episode.act(reply))
        if results[-1].done:
            break
    numbers = episode.metrics
    assert results[-1].done
    assert numbers["num_turns"] == len(results) == len(episode.observations) - 1
    assert numbers["num_actions"] == sum(len(result.actions) for result in results)
    assert numbers["num_actions"] <= episode.tag.max_actions
    assert numbers["reward"] == pytest.approx(sum(result.reward for result in results))
    assert numbers["penalty"] == pytest.approx(sum(result.penalty for result in results))
    assert numbers["num_invalid_turns"] == sum(not result.valid for result in results)
    assert episode.terminated != episode.truncated
