"""Bandit: pairs, payouts, and who shares which chance."""

import pytest

from envs.bandit import (
    RECOMBINED_PAIRS,
    TRAINING_PAIRS,
    UNSEEN_PAIRS,
    Bandit,
    BanditSettings,
)
from envs.base import Split
from envs.prompts import PromptStyle
from envs.tags import get_tag, make_environment


def risky_name(environment: Bandit) -> str:
    return environment.action_names[environment._risky_index]


def test_twelve_training_pairs_and_eight_others():
    names = [name for pair in TRAINING_PAIRS + UNSEEN_PAIRS for name in pair]
    assert (len(TRAINING_PAIRS), len(UNSEEN_PAIRS), len(RECOMBINED_PAIRS)) == (12, 8, 144)
    assert len(set(names)) == len(names) == 40
    known = {name for pair in TRAINING_PAIRS for name in pair}
    assert {name for pair in RECOMBINED_PAIRS for name in pair} <= known


@pytest.mark.parametrize(("swapped", "position"), [(False, 1), (True, 0)])
def test_the_risky_arm_follows_the_names_or_their_reverse(swapped, position):
    environment = Bandit(BanditSettings(swapped=swapped))
    orders = set()
    for seed in range(100):
        environment.reset(seed=seed)
        assert risky_name(environment) == environment._pair[position]
        orders.add(environment._risky_index)
    assert orders == {0, 1}


def test_the_safe_arm_pays_always_and_is_no_success():
    environment = Bandit(BanditSettings(safe_payout=0.15))
    for seed in range(20):
        environment.reset(seed=seed)
        safe = environment.action_names[1 - environment._risky_index]
        _, reward, terminated, truncated, info = environment.step(safe)
        assert (reward, terminated, truncated, info["success"]) == (0.15, True, False, 0.0)


def test_the_risky_arm_pays_a_quarter_of_the_time_and_is_a_success_either_way():
    environment = Bandit()
    rewards = []
    for noise_seed in range(4_000):
        environment.reset(seed=1, options={"noise_seed": noise_seed})
        _, reward, terminated, _, info = environment.step(risky_name(environment))
        assert (terminated, info["success"]) == (True, 1.0)
        rewards.append(reward)
    assert set(rewards) == {0.0, 1.0}
    assert sum(rewards) / 4_000 == pytest.approx(0.25, abs=0.03)


def test_members_of_a_group_see_one_pair_in_one_order():
    environment = Bandit()
    texts = {environment.reset(seed=9, options={"noise_seed": n})[0] for n in range(20)}
    assert len(texts) == 1


def test_the_best_arm_has_the_larger_expected_reward():
    for probability, best_is_risky in ((0.25, True), (0.05, False)):
        environment = Bandit(BanditSettings(risky_probability=probability))
        environment.reset(seed=0)
        assert (environment.optimal_action() == risky_name(environment)) is best_is_risky


def test_a_compact_prompt_evaluates_on_known_professions_a_full_one_on_unseen():
    pairs = {}
    for style in PromptStyle:
        tag = get_tag("Bandit").with_overrides(prompt=style)
        pairs[style] = make_environment(tag, split=Split.EVALUATION).pairs()
    assert pairs[PromptStyle.FULL] == UNSEEN_PAIRS
    training = make_environment(
        get_tag("Bandit").with_overrides(prompt="compact"), split=Split.TRAIN
    ).pairs()
    assert set(training) | set(pairs[PromptStyle.COMPACT]) == set(RECOMBINED_PAIRS)
    assert not set(training) & set(pairs[PromptStyle.COMPACT])
    assert len(pairs[PromptStyle.COMPACT]) >= 16
    chosen = get_tag("Bandit").with_overrides(prompt="compact", settings={"names": "pairs"})
    assert make_environment(chosen, split=Split.EVALUATION).pairs() == UNSEEN_PAIRS


def test_an_arm_is_pulled_by_its_name_in_any_case_and_no_other():
    environment = Bandit()
    environment.reset(seed=0)
    assert environment.step("Surfer")[4]["action_valid"] == 0.0
    assert not environment.over
    assert environment.step(environment.action_names[0].upper())[2]
