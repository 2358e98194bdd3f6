import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.filter_rules import (
    FilterSettings,
    Metric,
    Rule,
    Strategy,
    TopPMode,
    group_scores,
    keep_groups,
)

SHARES = st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0])
RETURNS = st.lists(
    st.lists(st.integers(-20, 110).map(lambda tenths: tenths / 10), min_size=4, max_size=4),
    min_size=1,
    max_size=12,
)


def settings_of(strategy: Strategy, value: float, **changes: object) -> FilterSettings:
    if strategy is Strategy.TOP_K_ABS:
        value = max(1, round(value * 8))
    return FilterSettings(strategy=strategy, value=value, **changes)


def kept(returns: object, settings: FilterSettings) -> list[int]:
    groups = [np.array(row, dtype=np.float64) for row in returns]
    return keep_groups(group_scores(groups, metric=settings.metric), settings=settings)


@given(
    returns=RETURNS,
    strategy=st.sampled_from(Strategy),
    metric=st.sampled_from(Metric),
    value=SHARES,
    largest=st.booleans(),
    scale=st.sampled_from([1e-4, 0.01, 0.1, 3.0, 7.7, 1e5]),
)
def test_R5_multiplying_all_returns_keeps_the_same_groups(
    returns, strategy, metric, value, largest, scale
):
    settings = settings_of(strategy, value, metric=metric, largest=largest)
    scaled = [[scale * number for number in row] for row in returns]
    assert kept(scaled, settings) == kept(returns, settings)


@pytest.mark.parametrize("scale", [1, 0.01, 0.001])
def test_R5_the_published_case_keeps_its_groups_at_every_scale(scale):
    returns = [[0, 0, 1, 1], [0, 0, 0, 1], [0.4, 0.5, 0.5, 0.6], [0, 0.1, 0, 0]]
    scaled = [[scale * number for number in row] for row in returns]
    assert kept(scaled, FilterSettings()) == kept(returns, FilterSettings())
    assert len(kept(returns, FilterSettings())) >= 2


def test_R5_the_published_rule_loses_groups_when_rewards_are_small():
    returns = [[0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 1, 1], [1, 0, 0, 0]]
    parity = FilterSettings(rule=Rule.PARITY)
    small = [[0.001 * number for number in row] for row in returns]
    assert len(kept(small, parity)) < len(kept(returns, parity))


def test_R6_the_default_rule_drops_dead_groups_of_binary_rewards():
    returns = [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 0]] * 2
    assert kept(returns, FilterSettings(value=1.0)) == [2, 3, 6, 7]
    assert kept(returns, FilterSettings(value=0.9)) == [2, 3, 6, 7]


def test_R6_the_published_softmax_rule_keeps_seven_dead_groups_of_eight():
    returns = [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]] + [[0, 0, 0, 0]] * 4
    parity = FilterSettings(rule=Rule.PARITY, top_p_mode=TopPMode.SOFTMAX)
    assert len(kept(returns, parity)) == 8
    assert kept(returns, FilterSettings()) == [3]


@given(
    returns=RETURNS,
    strategy=st.sampled_from([s for s in Strategy if s is not Strategy.NONE]),
    value=SHARES,
    largest=st.booleans(),
    metric=st.sampled_from(Metric),
)
def test_what_is_kept_is_a_run_of_the_order_and_never_empty_with_a_live_group(
    returns, strategy, value, largest, metric
):
    settings = settings_of(strategy, value, largest=largest, metric=metric)
    groups = [np.array(row) for row in returns]
    scores = group_scores(groups, metric=metric)
    found = keep_groups(scores, settings=settings)
    assert found == sorted(set(found))
    alive = [i for i, score in enumerate(scores) if abs(score) > 1e-9 * np.abs(scores).max() > 0]
    assert set(found) <= set(alive)
    mixed_signs = metric is not Metric.REWARD_STD and strategy is Strategy.MIN_P
    assert found or not alive or mixed_signs
    if strategy in (Strategy.TOP_P, Strategy.TOP_K, Strategy.TOP_K_ABS):
        sign = -1 if largest else 1
        order = sorted(alive, key=lambda index: (sign * round(scores[index], 9), index))
        assert found == sorted(order[: len(found)])


@given(returns=RETURNS, seed=st.integers(0, 99), strategy=st.sampled_from(Strategy), value=SHARES)
def test_the_scores_of_kept_groups_do_not_depend_on_the_order_of_members(
    returns, seed, strategy, value
):
    rng = np.random.default_rng(seed)
    settings = settings_of(strategy, value)
    assert kept([rng.permutation(row) for row in returns], settings) == kept(returns, settings)


def brute_force_top_p(scores: list[float], share: float) -> int:
    """The fewest groups that hold the share of the total."""
    for size in range(1, len(scores) + 1):
        best = max(sum(chosen) for chosen in itertools.combinations(scores, size))
        if best >= share * sum(scores) - 1e-9:
            return size
    raise AssertionError


@given(scores=st.lists(st.integers(1, 9), min_size=1, max_size=7), value=SHARES)
def test_top_p_keeps_the_fewest_groups_that_hold_the_share(scores, value):
    found = keep_groups(np.array(scores, dtype=np.float64), settings=FilterSettings(value=value))
    if value < 1:
        assert len(found) == brute_force_top_p(scores, value)
    else:
        assert found == list(range(len(scores)))


@pytest.mark.parametrize("score", [0.1, 0.3, 1 / 3, 4.85, 1e-5])
def test_twenty_equal_groups_give_eighteen_at_ninety_percent_whatever_their_score(score):
    assert keep_groups(np.full(20, score), settings=FilterSettings()) == list(range(18))


@pytest.mark.parametrize(
    ("strategy", "value", "expected"),
    [
        (Strategy.NONE, 0.9, [0, 1, 2, 3, 4]),
        (Strategy.TOP_P, 0.5, [1]),
        (Strategy.TOP_P, 0.7, [1, 3]),
        (Strategy.TOP_K, 0.4, [1, 3]),
        (Strategy.TOP_K, 0.1, [1]),
        (Strategy.TOP_K_ABS, 3, [1, 3, 4]),
        (Strategy.TOP_K_ABS, 99, [1, 3, 4]),
        (Strategy.MIN_P, 0.4, [1, 3]),
    ],
)
def test_each_strategy_in_closed_form(strategy, value, expected):
    scores = np.array([0.0, 5.0, 0.0, 2.0, 1.0])
    assert keep_groups(scores, settings=FilterSettings(strategy=strategy, value=value)) == expected


def test_smallest_first_turns_the_order():
    scores = np.array([5.0, 2.0, 1.0])
    for strategy, value, expected in (
        (Strategy.TOP_K_ABS, 1, [2]),
        (Strategy.MIN_P, 0.5, [1, 2]),
        (Strategy.TOP_P, 0.5, [2]),
    ):
        settings = FilterSettings(strategy=strategy, value=value, largest=False)
        assert keep_groups(scores, settings=settings) == expected


def test_ties_go_to_the_lower_group_also_when_rounding_differs():
    noisy = np.array([0.3, 0.1 + 0.2, 0.3])  # the middle one is larger by one bit
    assert keep_groups(noisy, settings=FilterSettings(strategy=Strategy.TOP_K_ABS, value=1)) == [0]


def test_scores_below_the_floor_are_not_alive():
    settings = FilterSettings(value=1.0, min_score=0.5)
    assert keep_groups(np.array([0.4, 0.6, 0.5]), settings=settings) == [1]


@pytest.mark.parametrize("strategy", [s for s in Strategy if s is not Strategy.NONE])
def test_A16_no_live_group_leaves_nothing_and_no_group_neither(strategy):
    settings = settings_of(strategy, 0.5)
    assert keep_groups(np.zeros(4), settings=settings) == []
    assert keep_groups(np.zeros(0), settings=settings) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": 1.5}, "takes a share"),
        ({"strategy": "top_k_abs", "value": 2.5}, "whole number"),
        ({"value": 0}, "greater than 0"),
        ({"strategy": "best"}, "top_p"),
        ({"values": 1}, "not permitted"),
    ],
)
def test_bad_filter_settings_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        FilterSettings(**change)


def test_a_group_whose_score_is_rounding_only_is_dead():
    settings = FilterSettings(strategy=Strategy.TOP_K_ABS, value=2)
    assert keep_groups(np.array([1e-12, 1.0]), settings=settings) == [1]


def test_scores_in_closed_form():
    groups = [np.array([1.0, 3.0]), np.array([2.0, 2.0, 5.0])]
    for metric, expected in (
        (Metric.REWARD_STD, [2**0.5, 3**0.5]),
        (Metric.REWARD, [2, 3]),
        (Metric.REWARD_SUM, [4, 9]),
    ):
        assert group_scores(groups, metric=metric).tolist() == pytest.approx(expected)


def test_top_p_stops_where_the_share_is_reached_exactly_in_spite_of_rounding():
    assert keep_groups(np.array([6.0, 2.0, 1.0, 1.0]), settings=FilterSettings()) == [0, 1, 2]
