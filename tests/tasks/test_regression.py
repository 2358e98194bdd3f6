"""Regressions of nightly figures."""

import math

import numpy as np
import pytest

from tasks.errors import SampleError
from tasks.regression import MIN_HISTORY, SLOWDOWN, WINDOW, judge, power

NUM_FIGURES = 5


def test_the_stated_power_is_the_power() -> None:
    rng = np.random.default_rng(2)
    spread, found = 0.014, 0
    for _ in range(2000):
        values = np.exp(rng.normal(0, spread, 20 + WINDOW))
        values[-WINDOW:] *= 1 + SLOWDOWN
        found += judge(list(values), num_figures=NUM_FIGURES).is_regression
    assert found / 2000 == pytest.approx(
        power(spread, num_history=20, num_figures=NUM_FIGURES), abs=0.03
    )


def test_a_figure_that_never_moves_may_still_regress() -> None:
    same = [610.5] * 12
    assert not judge(same, num_figures=NUM_FIGURES).is_regression
    assert judge([*same, *[630.0] * WINDOW], num_figures=NUM_FIGURES).is_regression


def test_an_improvement_is_no_regression() -> None:
    assert not judge([1.0] * 12 + [0.5] * WINDOW, num_figures=NUM_FIGURES).is_regression


def test_with_few_nights_nothing_is_judged() -> None:
    found = judge([1.0] * (MIN_HISTORY - 1) + [9.0], num_figures=NUM_FIGURES)
    assert not found.is_regression
    assert found.threshold == math.inf


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, float("nan")]])
def test_a_figure_that_is_not_positive_is_refused(values: list[float]) -> None:
    with pytest.raises(SampleError, match="positive finite"):
        judge(values, num_figures=NUM_FIGURES)
