"""Turn-level GAE, rewards to go, normalised returns, GiGPO's steps, deviations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import TrainingDataError
from models.estimators import (
    Normalisation,
    gae,
    group_deviations,
    normalised_returns,
    rewards_to_go,
    spread,
    step_advantages,
    turn_gae,
)

TURN = np.array([-1, 0, 0, -1, 1, 1, 1, -1, 2], dtype=np.int16)
VALUES = np.array([9.0, 0.5, 7.0, 9.0, 0.2, 7.0, 7.0, 9.0, 0.1])
NUMBERS = st.floats(-10, 10, allow_nan=False)


def ids(*names: str) -> np.ndarray:
    return np.array(names, dtype=np.str_)


def test_turn_gae_is_gae_over_the_states_that_turns_begin_in():
    rewards = np.array([1.0, 0.0, 2.0])
    advantages, returns = turn_gae(
        turn_rewards=rewards, values=VALUES, turn=TURN, gamma=0.9, lam=0.8, bootstrap_value=0.4
    )
    expected, targets = gae(
        rewards=rewards,
        values=np.array([0.5, 0.2, 0.1]),
        mask=np.ones(3, dtype=bool),
        gamma=0.9,
        lam=0.8,
        bootstrap_value=0.4,
    )
    assert advantages == pytest.approx(np.where(TURN >= 0, expected[TURN], 0.0))
    assert returns == pytest.approx(np.where(TURN >= 0, targets[TURN], 0.0))


def test_A9_observation_tokens_change_nothing_for_turns():
    rewards = np.array([1.0, 0.0, 2.0])
    keep = TURN >= 0
    longer, _ = turn_gae(turn_rewards=rewards, values=VALUES, turn=TURN, gamma=0.9, lam=0.8)
    short, _ = turn_gae(
        turn_rewards=rewards, values=VALUES[keep], turn=TURN[keep], gamma=0.9, lam=0.8
    )
    assert longer[keep] == pytest.approx(short)


def test_R3_a_turn_without_tokens_is_refused():
    with pytest.raises(TrainingDataError, match="4 turn rewards"):
        turn_gae(turn_rewards=np.ones(4), values=VALUES, turn=TURN, gamma=1.0, lam=1.0)


def test_rewards_to_go_are_the_discounted_rewards_of_later_sampled_tokens():
    rewards = np.array([5.0, 1.0, 5.0, 2.0, 4.0])
    mask = np.array([False, True, False, True, True])
    found = rewards_to_go(rewards, mask=mask, gamma=0.5)
    assert found.tolist() == [0.0, 1.0 + 0.5 * 2.0 + 0.25 * 4.0, 0.0, 2.0 + 0.5 * 4.0, 4.0]


def test_spread_gives_each_token_its_turns_number():
    assert spread(np.array([1.0, 2.0, 3.0]), TURN).tolist() == [0, 1, 1, 0, 2, 2, 2, 0, 3]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Normalisation.IDENTITY, [1.0, 0.0, 0.0, 0.0]),
        (Normalisation.MEAN, [0.75, -0.25, -0.25, -0.25]),
        (Normalisation.MEAN_STD, [1.5, -0.5, -0.5, -0.5]),
        (Normalisation.ASYMMETRIC, [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_returns_are_normalised_over_their_group(method, expected):
    found = normalised_returns(np.array([1.0, 0, 0, 0]), ids("a", "a", "a", "a"), method=method)
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_asymmetric_form_cuts_between_minus_one_and_three():
    returns = np.array([-50.0, *[0.0] * 30, 0.1])
    low = normalised_returns(returns, ids(*["a"] * 32), method=Normalisation.ASYMMETRIC)
    high = normalised_returns(-returns, ids(*["a"] * 32), method=Normalisation.ASYMMETRIC)
    assert low.min() == -1.0
    assert high.max() == 3.0


def steps(to_go, states, groups, *, std=False):
    return step_advantages(np.array(to_go), ids(*states), ids(*groups), divide_by_std=std).tolist()


def test_a_state_that_was_met_once_adds_nothing():
    assert steps([3.0, 5.0], ["s", "t"], ["a", "a"]) == [0.0, 0.0]


def test_turns_from_the_same_state_of_a_group_are_compared():
    assert steps([3.0, 5.0, 9.0], ["s", "s", "t"], ["a", "a", "a"]) == [-1.0, 1.0, 0.0]


def test_I4_the_same_state_in_another_group_is_another_state():
    assert steps([3.0, 5.0], ["s", "s"], ["a", "b"]) == [0.0, 0.0]
    assert steps([3.0, 5.0], ["1|x", "x"], ["a", "a|1"]) == [0.0, 0.0]


def test_steps_may_be_divided_by_their_deviation():
    found = steps([3.0, 5.0], ["s", "s"], ["a", "a"], std=True)
    assert found == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5)


@given(returns=st.lists(NUMBERS, min_size=2, max_size=6), data=st.data())
def test_deviations_are_numpys_whatever_the_order(returns, data):
    other = [1.0, 2.0, 4.0]
    order = data.draw(st.permutations(range(len(returns) + 3)))
    values = np.array([*returns, *other])[order]
    groups = ids(*["a"] * len(returns), *["b"] * 3)[order]
    expected = np.where(groups == "a", np.std(returns, ddof=1), np.std(other, ddof=1))
    assert group_deviations(values, groups) == pytest.approx(expected, abs=1e-9)
