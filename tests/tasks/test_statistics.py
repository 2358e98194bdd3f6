"""Means over seeds, paired comparisons, Holm's correction, summaries of curves."""

import math

import numpy as np
import pytest

from tasks.errors import SampleError
from tasks.statistics import (
    Comparison,
    compare_arms,
    detectable_difference,
    mean_interval,
    paired,
    summarise_curve,
)

STUDIES = 2000


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def against(reference: str, values: dict[str, dict[int, float]]) -> dict[str, Comparison]:
    return compare_arms(values, references=dict.fromkeys(values, reference))


def test_the_interval_is_students() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445105 * math.sqrt(2.5 / 5)
    assert found.mean == 3.0
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half))


@pytest.mark.parametrize("values", [[0.7], [0.7, 0.7], [0.1 + 0.2, 0.3, 0.3]])
def test_values_without_a_spread_say_nothing_about_others(values: list[float]) -> None:
    found = mean_interval(values)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(SampleError, match="finite"):
        mean_interval([0.1, float("nan")])


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
def test_intervals_of_a_mean_cover_it_in_95_percent_of_studies(num_seeds: int) -> None:
    rng = np.random.default_rng(num_seeds)
    # success rates of 256 episodes, whose true rate differs from seed to seed
    rates = np.clip(rng.normal(0.6, 0.05, (STUDIES, num_seeds)), 0, 1)
    studies = rng.binomial(256, rates) / 256
    covered = [row.low <= 0.6 <= row.high for row in map(mean_interval, studies)]
    assert 0.93 <= np.mean(covered) <= 0.97


def test_the_corrected_intervals_of_all_arms_hold_together_in_95_percent_of_studies() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(STUDIES):
        study = rng.normal(0.6, 0.05, (4, 5))
        arms = {str(index): seeds(*row) for index, row in enumerate(study)}
        found = against("0", arms)
        wrong += any(item.is_distinguishable for item in found.values())
    assert 0.02 <= wrong / STUDIES <= 0.07


def test_arms_are_paired_by_seed() -> None:
    assert paired({0: 1.0, 1: 2.0, 3: 5.0}, {3: 6.0, 1: 2.5, 2: 9.0}) == [0.5, 1.0]


def test_pairing_takes_out_what_seeds_share() -> None:
    luck = np.array([0.1, 0.5, 0.3, 0.9, 0.7])
    noise = np.array([0.01, -0.01, 0.0, 0.01, -0.01])
    found = against("a", {"a": seeds(*luck), "b": seeds(*(luck + 0.1 + noise))})
    assert found["b"].is_distinguishable
    assert found["b"].difference.mean == pytest.approx(0.1)
    assert found["b"].num_seeds == 5


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_arms() -> None:
    base = [0.1, 0.2, 0.3, 0.4, 0.5]
    near = [0.15, 0.22, 0.37, 0.41, 0.58]
    far = [0.35, 0.42, 0.57, 0.61, 0.78]
    both = against("r", {"r": seeds(*base), "near": seeds(*near), "far": seeds(*far)})
    alone = {
        name: against("r", {"r": seeds(*base), name: seeds(*row)})[name].p_value
        for name, row in (("near", near), ("far", far))
    }
    assert both["far"].p_value == pytest.approx(2 * alone["far"])
    assert both["near"].p_value == pytest.approx(max(2 * alone["far"], alone["near"]))


def test_each_arm_is_compared_with_its_own_reference_and_all_share_the_correction() -> None:
    values = {"a": seeds(0.1, 0.2, 0.3), "b": seeds(0.3, 0.41, 0.5)}
    values |= {"x": seeds(0.7, 0.8, 0.9), "y": seeds(0.7, 0.83, 0.9)}
    found = compare_arms(values, references={"a": "a", "b": "a", "x": "x", "y": "x"})
    assert list(found) == ["b", "y"]
    assert found["b"].difference.mean == pytest.approx(0.61 / 3)
    assert found["b"].p_value == pytest.approx(2 * against("a", values)["b"].p_value, rel=2)
    assert found["y"].difference.mean == pytest.approx(0.01)


def test_a_detectable_difference_is_found_in_four_of_five_studies() -> None:
    rng = np.random.default_rng(1)
    spread = 0.04
    sample = rng.normal(0, 1, 5)
    sample *= spread / sample.std(ddof=1)
    size = detectable_difference(sample, level=0.05)
    found = [
        against("a", {"a": seeds(*np.zeros(5)), "b": seeds(*rng.normal(size, spread, 5))})["b"]
        for _ in range(STUDIES)
    ]
    power = np.mean([item.is_distinguishable for item in found])
    assert 0.75 <= power <= 0.85


def test_arms_that_never_differ_are_not_distinguishable() -> None:
    found = against("a", {"a": seeds(0.5, 0.6), "b": seeds(0.5, 0.6)})["b"]
    assert not found.is_distinguishable
    assert found.p_value == 1.0


def test_seeds_that_happen_to_agree_are_no_certainty() -> None:
    found = against("a", {"a": seeds(15 / 32, 0.1), "b": seeds(16 / 32, 0.1 + 1 / 32)})["b"]
    assert found.difference.mean == pytest.approx(1 / 32)
    assert not found.is_distinguishable
    assert found.p_value == 1.0
    assert found.detectable == math.inf


def test_a_curve_is_summarised_by_end_peak_area_and_collapse() -> None:
    found = summarise_curve({0: 0.2, 10: 0.8, 20: 0.3, 30: 0.1})
    assert (found.final, found.peak, found.collapse) == (0.1, 0.8, 20)
    assert found.area == pytest.approx((0.5 + 0.55 + 0.2) / 3)


def test_a_curve_that_ends_high_has_not_collapsed() -> None:
    assert summarise_curve({0: 0.2, 10: 0.05, 20: 0.6}).collapse is None
    assert summarise_curve({0: 0.4}).area == 0.4
