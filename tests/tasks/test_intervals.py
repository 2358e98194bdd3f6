import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import SampleError
from tasks.intervals import (
    bootstrap_mean_interval,
    newcombe_interval,
    paired_difference_interval,
    pass_at_k,
    wilson_interval,
)

SAMPLES = st.tuples(st.integers(1, 300), st.floats(0, 1)).map(
    lambda pair: (round(pair[0] * pair[1]), pair[0])
)


@given(SAMPLES)
def test_the_wilson_bounds_solve_its_quadratic(sample):
    """Each bound p satisfies |successes/n - p| = z sqrt(p (1-p) / n)."""
    successes, trials = sample
    for bound in wilson_interval(successes, trials):
        distance = 1.959963984540054 * math.sqrt(max(bound * (1 - bound), 0) / trials)
        assert abs(successes / trials - bound) == pytest.approx(distance, abs=1e-9)


def test_wilson_of_known_counts():
    low, high = wilson_interval(69, 256)
    assert (round(low, 3), round(high, 3)) == (0.219, 0.327)


def test_newcombe_of_its_papers_first_example():
    """Newcombe 1998, table II, (a): 56/70 - 48/80, method 10: 0.0524 to 0.3339."""
    low, high = newcombe_interval((48, 80), (56, 70))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


@given(SAMPLES, SAMPLES)
def test_newcombe_holds_the_difference_and_turns_with_the_order(first, second):
    low, high = newcombe_interval(first, second)
    difference = second[0] / second[1] - first[0] / first[1]
    assert -1 - 1e-9 <= low <= difference + 1e-9
    assert difference - 1e-9 <= high <= 1 + 1e-9
    assert newcombe_interval(second, first) == pytest.approx((-high, -low), abs=1e-9)


def test_the_bootstrap_is_near_the_normal_interval_for_many_values():
    values = np.random.default_rng(0).normal(3, 2, 4000)
    low, high = bootstrap_mean_interval(values, seed=1)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_the_bootstrap_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(200):
        low, high = bootstrap_mean_interval(rng.normal(size=60), seed=seed, resamples=400)
        hits += low <= 0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_the_bootstrap_is_a_function_of_its_seed():
    values = [1.0, 2.0, 5.0]
    first = bootstrap_mean_interval(values, seed=1)
    assert first == bootstrap_mean_interval(values, seed=1)
    assert 1 <= first[0] <= 8 / 3 <= first[1] <= 5


def test_pairing_removes_what_the_instances_have_in_common():
    rng = np.random.default_rng(0)
    difficulty = rng.normal(0, 10, 100)
    before, after = difficulty + rng.normal(0, 0.1, 100), difficulty + 1 + rng.normal(0, 0.1, 100)
    low, high = paired_difference_interval(before, after, seed=0)
    assert 0.9 < low < 1 < high < 1.1


def test_equal_samples_differ_by_exactly_nothing():
    assert paired_difference_interval([1, 0, 1], [1, 0, 1], seed=0) == (0, 0)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")]])
def test_a_mean_of_nothing_or_of_nan_is_refused(values):
    with pytest.raises(SampleError, match="finite"):
        bootstrap_mean_interval(values, seed=0)


def test_samples_that_cannot_be_paired_are_refused():
    with pytest.raises(SampleError, match="3 and 2 values cannot be paired"):
        paired_difference_interval([1, 2, 3], [1, 2], seed=0)


@pytest.mark.parametrize("samples", range(1, 9))
def test_E1_pass_at_k_equals_enumeration(samples):
    for successes, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        draws = list(
            itertools.combinations([True] * successes + [False] * (samples - successes), k)
        )
        expected = sum(any(draw) for draw in draws) / len(draws)
        assert pass_at_k(samples, successes, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("samples", "successes", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1)]
)
def test_impossible_pass_at_k_is_refused(samples, successes, k):
    with pytest.raises(SampleError, match="hint"):
        pass_at_k(samples, successes, k)
