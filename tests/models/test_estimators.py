import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.errors import GroupError, TrainingDataError
from models.estimators import GroupEstimator, bilevel_gae, gae, group_advantages, whiten

ALL = list(GroupEstimator)
FINITE = st.floats(-10, 10, allow_nan=False, width=32)


def advantages_of(returns: list[float], estimator: GroupEstimator) -> np.ndarray:
    return group_advantages(np.array(returns), np.full(len(returns), "g"), estimator=estimator)


def brute_force_gae(rewards, values, gamma, lam, bootstrap):
    """The double sum of the definition: sum over l of (gamma lambda)^l delta_{t+l}."""
    after = [*values[1:], bootstrap]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [
        sum((gamma * lam) ** (j - t) * deltas[j] for j in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@given(
    data=st.data(),
    size=st.integers(1, 8),
    gamma=st.floats(0.1, 1),
    lam=st.floats(0, 1),
    bootstrap=FINITE,
)
def test_gae_equals_the_double_sum_of_its_definition(data, size, gamma, lam, bootstrap):
    rewards = data.draw(arrays(np.float64, size, elements=FINITE))
    values = data.draw(arrays(np.float64, size, elements=FINITE))
    advantages, returns = gae(
        rewards=rewards,
        values=values,
        mask=np.ones(size, dtype=bool),
        gamma=gamma,
        lam=lam,
        bootstrap_value=bootstrap,
    )
    expected = brute_force_gae(rewards, values, gamma, lam, bootstrap)
    np.testing.assert_allclose(advantages, expected, atol=1e-9)
    np.testing.assert_allclose(returns, advantages + values, atol=1e-12)


def test_with_lambda_one_the_return_of_a_token_is_the_discounted_reward_to_go():
    rewards = np.array([0.0, 1.0, 0.0, 2.0])
    _, returns = gae(
        rewards=rewards,
        values=np.array([3.0, -1.0, 0.5, 7.0]),
        mask=np.ones(4, dtype=bool),
        gamma=0.5,
        lam=1.0,
    )
    np.testing.assert_allclose(returns, [0.5 + 0.25, 1 + 0.5, 1.0, 2.0])


@pytest.mark.parametrize("place", [0, 2, 5])
def test_A9_inserting_100_observation_tokens_changes_nothing(place):
    rng = np.random.default_rng(0)
    turn = np.array([-1, 0, 0, -1, 1, 1], dtype=np.int16)
    values, rewards = rng.normal(size=6), np.where(turn >= 0, rng.normal(size=6), 0)
    long_turn = np.insert(turn, place, np.full(100, -1))
    long_values = np.insert(values, place, rng.normal(size=100))
    long_rewards = np.insert(rewards, place, np.zeros(100))
    numbers = {"gamma": 0.9, "lam": 0.8, "bootstrap_value": 0.3}
    kept = long_turn >= 0
    short = gae(rewards=rewards, values=values, mask=turn >= 0, **numbers)
    long = gae(rewards=long_rewards, values=long_values, mask=kept, **numbers)
    bi = {"turn_rewards": np.array([0.5, 1.0]), "turn_gamma": 0.7, **numbers}
    short_bi = bilevel_gae(values=values, turn=turn, **bi)
    long_bi = bilevel_gae(values=long_values, turn=long_turn, **bi)
    for before, after in zip((*short, *short_bi), (*long, *long_bi), strict=True):
        np.testing.assert_array_equal(before[turn >= 0], after[kept])
        assert not after[~kept].any()


def test_A11_a_truncated_episode_continues_with_its_own_last_value_a_terminated_one_with_zero():
    arguments = {
        "rewards": np.zeros(3),
        "values": np.array([1.0, 1.0, 1.0]),
        "mask": np.ones(3, dtype=bool),
        "gamma": 1.0,
        "lam": 1.0,
    }
    assert gae(**arguments, bootstrap_value=2.0)[1].tolist() == [2, 2, 2]
    assert gae(**arguments)[1].tolist() == [0, 0, 0]


def test_R3_a_last_turn_without_reward_is_a_turn_like_any_other():
    turn = np.array([0, 0, -1, 1, 1], dtype=np.int16)
    values = np.array([0.1, 0.2, 0.0, 0.3, 0.4])
    found, _ = bilevel_gae(
        turn_rewards=np.array([1.0, 0.0]),
        values=values,
        turn=turn,
        gamma=1.0,
        lam=1.0,
        turn_gamma=0.5,
    )
    last_target = 0.0
    first_target = 1.0 + 0.5 * last_target
    expected = [first_target - 0.1, first_target - 0.2, 0.0, last_target - 0.3, last_target - 0.4]
    np.testing.assert_allclose(found, expected)


def test_bilevel_with_one_turn_is_gae_of_the_turn():
    values, turn = np.array([0.3, -0.2, 0.9]), np.zeros(3, dtype=np.int16)
    both = bilevel_gae(
        turn_rewards=np.array([2.0]), values=values, turn=turn, gamma=0.9, lam=0.7, turn_gamma=0.5
    )
    single = gae(
        rewards=np.array([0, 0, 2.0]),
        values=values,
        mask=np.ones(3, dtype=bool),
        gamma=0.9,
        lam=0.7,
    )
    np.testing.assert_allclose(both, single)


@pytest.mark.parametrize("turn", [[0, 0, -1], [0, 2, -1], [0, 1, 2]])
def test_a_turn_without_token_or_without_reward_is_refused(turn):
    with pytest.raises(TrainingDataError, match="2 turn rewards"):
        bilevel_gae(
            turn_rewards=np.zeros(2),
            values=np.zeros(3),
            turn=np.array(turn, dtype=np.int16),
            gamma=1,
            lam=1,
            turn_gamma=1,
        )


def test_group_estimators_in_closed_form():
    np.testing.assert_allclose(
        advantages_of([3, 1], GroupEstimator.GRPO), [2**-0.5, -(2**-0.5)], atol=1e-6
    )
    assert advantages_of([3, 1, 2], GroupEstimator.DR_GRPO).tolist() == [1, -1, 0]
    assert advantages_of([3, 1, 2], GroupEstimator.RLOO).tolist() == [1.5, -1.5, 0]


@pytest.mark.parametrize("estimator", ALL)
@given(seed=st.integers(0, 2**16))
@settings(max_examples=25)
def test_A2_shuffled_rows_give_the_same_advantages(estimator, seed):
    rng = np.random.default_rng(seed)
    ids = np.repeat([f"g{index}" for index in range(5)], [2, 3, 4, 2, 8])
    returns = rng.normal(size=len(ids))
    order = rng.permutation(len(ids))
    expected = group_advantages(returns, ids, estimator=estimator)
    found = group_advantages(returns[order], ids[order], estimator=estimator)
    np.testing.assert_allclose(found, expected[order], atol=1e-12)


@pytest.mark.parametrize("estimator", ALL)
def test_A2_a_group_is_not_touched_by_the_others(estimator):
    ids = np.array(["b", "a", "b", "a"])
    found = group_advantages(np.array([1.0, 5, 0, 9]), ids, estimator=estimator)
    alone = group_advantages(np.array([5.0, 9]), np.array(["a", "a"]), estimator=estimator)
    np.testing.assert_allclose(found[[1, 3]], alone, atol=1e-12)


@pytest.mark.parametrize("estimator", ALL)
def test_R1_A1_a_group_of_one_is_refused_by_name(estimator):
    with pytest.raises(GroupError, match="`lonely` has one member"):
        group_advantages(np.array([1.0, 2, 3]), np.array(["g", "g", "lonely"]), estimator=estimator)


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("value", [0.3, 10.9, -0.1, 1e6])
def test_R2_returns_that_differ_by_rounding_give_zero(estimator, value):
    noisy = np.array([value, np.nextafter(value, 9e9), value, np.nextafter(value, -9e9)])
    assert not group_advantages(noisy, np.full(4, "g"), estimator=estimator).any()
    assert not advantages_of([0.1 + 0.2, 0.3], estimator).any()


@pytest.mark.parametrize("estimator", ALL)
def test_R2_a_small_but_real_spread_is_not_lost(estimator):
    assert np.all(advantages_of([1.0, 1.001], estimator) != 0)


@pytest.mark.parametrize("estimator", ALL)
def test_A5_a_return_that_is_not_finite_is_refused_and_not_spread(estimator):
    with pytest.raises(GroupError, match="not finite"):
        advantages_of([1.0, np.nan, 0.0], estimator)


@given(st.lists(FINITE, min_size=2, max_size=10), st.floats(0.25, 8))
def test_grpo_does_not_depend_on_the_scale_of_the_returns(returns, scale):
    # away from the thresholds, which are absolute below 1
    if np.std(returns) < 0.05:
        returns = [*returns, returns[0] + 5]
    before = advantages_of(returns, GroupEstimator.GRPO)
    after = advantages_of([value * scale for value in returns], GroupEstimator.GRPO)
    np.testing.assert_allclose(before, after, atol=1e-3)


@pytest.mark.parametrize("estimator", ALL)
@given(returns=st.lists(FINITE, min_size=2, max_size=10))
def test_group_advantages_sum_to_zero_and_keep_the_order(estimator, returns):
    found = advantages_of(returns, estimator)
    assert abs(found.sum()) < 1e-6
    ordered = found[np.argsort(returns, kind="stable")]
    assert np.all(np.diff(ordered) >= -1e-9)


@given(arrays(np.float64, st.integers(2, 40), elements=FINITE), st.integers(0, 5))
def test_whitened_advantages_have_mean_zero_and_deviation_one_on_the_mask(values, holes):
    mask = np.ones(len(values) + holes, dtype=bool)
    mask[len(values) :] = False
    found = whiten(np.concatenate([values, np.full(holes, 99.0)]), mask)
    assert not found[~mask].any()
    assert abs(found[mask].mean()) < 1e-9
    if values.std() > 0.1:
        assert found[mask].std(ddof=1) == pytest.approx(1, abs=1e-4)


def test_whitening_one_or_no_token_is_finite():
    assert whiten(np.array([3.0, 4.0]), np.array([True, False])).tolist() == [0, 0]
    assert whiten(np.array([3.0]), np.array([False])).tolist() == [0]


def test_ten_thousand_groups_take_less_than_half_a_second():
    import time

    rng = np.random.default_rng(0)
    ids = np.repeat([f"g{index:05d}" for index in range(10_000)], 8)
    start = time.perf_counter()
    group_advantages(rng.normal(size=len(ids)), ids, estimator=GroupEstimator.GRPO)
    assert time.perf_counter() - start < 0.5
