"""Stop rules: when they fire, and that they hold still before."""

import pytest

from flows.adaptive_kl import kl_coefficient
from flows.stop import StopSettings, stop_reason
from models.settings import LossSettings

RULES = StopSettings()


def row(spread: float = 1.0, *, empty: float = 0.0, nonfinite: float = 0.0, **more: float) -> dict:
    return {
        "rollout/group_return_std": spread,
        "update/skipped_empty": empty,
        "update/skipped_nonfinite": nonfinite,
        **{name.replace("__", "/"): value for name, value in more.items()},
    }


def test_a_healthy_run_goes_on() -> None:
    assert stop_reason([row(evaluate__success=0.5) for _ in range(50)], RULES) is None


def test_collapse_is_ten_iterations_under_a_tenth_of_the_first_ten() -> None:
    start = [row(2.0)] * 10
    assert stop_reason([*start, *[row(0.19)] * 9], RULES) is None
    assert "collapsed" in (stop_reason([*start, *[row(0.19)] * 10], RULES) or "")
    assert stop_reason([*start, *[row(0.19)] * 9, row(0.21)], RULES) is None
    assert stop_reason([*start, row(0.21), *[row(0.19)] * 9], RULES) is None


def test_a_run_that_never_had_any_spread_has_not_collapsed() -> None:
    assert stop_reason([row(0.0)] * 30, RULES) is None


def test_low_success_counts_only_after_a_success() -> None:
    low = [row(evaluate__success=0.0)] * 9
    assert stop_reason(low, RULES) is None
    after = [row(evaluate__success=0.2), *[row(evaluate__success=0.005)] * 4]
    assert stop_reason(after, RULES) is None
    assert "success" in (stop_reason([*after, row(evaluate__success=0.0)], RULES) or "")


@pytest.mark.parametrize("name", ["empty", "nonfinite"])
def test_updates_without_a_step_stop_the_run_when_five_follow_each_other(name: str) -> None:
    bad, good = row(**{name: 1.0}), row()
    assert stop_reason([*[bad] * 4, good, *[bad] * 4], RULES) is None
    assert stop_reason([good, *[bad] * 5], RULES) is not None


def test_zero_switches_a_rule_off() -> None:
    off = StopSettings(
        collapse_updates=0, low_evaluations=0, skipped_updates=0, nonfinite_updates=0
    )
    history = [row(2.0, evaluate__success=0.9)] * 10
    history += [row(0.0, empty=1.0, nonfinite=1.0, evaluate__success=0.0)] * 20
    assert stop_reason(history, off) is None


def test_a_fixed_kl_coefficient_stays() -> None:
    loss = LossSettings(kl_coefficient=0.1)
    assert kl_coefficient(loss, [9.0] * 5, num_episodes=100) == 0.1


def test_an_adaptive_kl_coefficient_rises_above_the_target_and_falls_below() -> None:
    loss = LossSettings(kl_coefficient=0.1, kl_target=0.02, kl_horizon=1000)
    assert kl_coefficient(loss, [1.0], num_episodes=100) == pytest.approx(0.1 * 1.02)
    assert kl_coefficient(loss, [0.0], num_episodes=100) == pytest.approx(0.1 * 0.98)
    assert kl_coefficient(loss, [0.022], num_episodes=100) == pytest.approx(0.1 * 1.01)
    assert kl_coefficient(loss, [], num_episodes=100) == 0.1
