"""Invariants of every estimator on whole shards: order, ids, observations, scale, flat groups."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.estimates import AdvantageSettings, Estimator, estimate_advantages
from tasks.filter import filter_groups
from tasks.filter_rules import FilterSettings, Metric, Strategy
from tasks.shards import rows_of
from tasks.trajectories import trajectory_table

SLOW = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
ESTIMATORS = list(Estimator)
REWARDS = st.lists(st.tuples(*[st.integers(-4, 4)] * 2), min_size=6, max_size=6)
LAYOUTS = [((3, 2), (2, 3)), ((1, 4), (3, 1)), ((2, 1), (1, 2))]


def episodes(trajectory, rewards: list[tuple[int, int]], *, names: str = "ab", extra: int = 0):
    """Two groups of three; `extra` observation tokens are inserted before every reply."""
    return trajectory_table(
        [
            trajectory(
                group=names[index // 3],
                member=index % 3,
                rewards=tuple(map(float, pair)),
                turns=tuple((text + extra, reply) for text, reply in LAYOUTS[index % 3]),
            )
            for index, pair in enumerate(rewards)
        ]
    )


def values_of(table: pa.Table) -> list[np.ndarray]:
    """Values that depend on what a token is, not on where it stands."""
    found = []
    for turn in rows_of(table, "turn"):
        value = np.where(turn >= 0, np.cos(np.cumsum(turn >= 0)), 5.0)
        found.append(np.append(value, 0.3).astype(np.float32))
    return found


def estimate(table: pa.Table, estimator: Estimator, **options) -> list[np.ndarray]:
    chosen = AdvantageSettings(estimator=estimator, gamma=0.9, lam=0.8, turn_gamma=0.7, **options)
    return estimate_advantages(table, settings=chosen, values=values_of(table)).advantages


def sampled(table: pa.Table, rows: list[np.ndarray]) -> dict[str, np.ndarray]:
    masks = rows_of(table, "sampled")
    names = table["episode"].to_pylist()
    return {name: row[mask] for name, row, mask in zip(names, rows, masks, strict=True)}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, row in one.items():
        np.testing.assert_allclose(other[name], row, atol=1e-9)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@SLOW
@given(rewards=REWARDS, order=st.permutations(range(6)))
def test_A2_I6_the_order_of_rows_changes_nothing(trajectory, estimator, rewards, order) -> None:
    table = episodes(trajectory, rewards)
    mixed = table.take(order)
    assert_same(
        sampled(table, estimate(table, estimator)), sampled(mixed, estimate(mixed, estimator))
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@SLOW
@given(rewards=REWARDS, extra=st.integers(1, 100))
def test_A9_inserted_observation_tokens_change_nothing(trajectory, estimator, rewards, extra):
    table, longer = episodes(trajectory, rewards), episodes(trajectory, rewards, extra=extra)
    assert_same(
        sampled(table, estimate(table, estimator)), sampled(longer, estimate(longer, estimator))
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
@SLOW
@given(rewards=REWARDS)
def test_I2_tokens_that_were_not_sampled_have_no_advantage(trajectory, estimator, rewards) -> None:
    table = episodes(trajectory, rewards)
    for row, mask in zip(estimate(table, estimator), rows_of(table, "sampled"), strict=True):
        assert not row[~mask].any()


@pytest.mark.parametrize("estimator", [Estimator.GRPO, Estimator.DR_GRPO, Estimator.RLOO])
@SLOW
@given(rewards=REWARDS)
def test_I4_ids_of_groups_are_names_and_nothing_more(trajectory, estimator, rewards) -> None:
    one = estimate(episodes(trajectory, rewards), estimator)
    other = estimate(episodes(trajectory, rewards, names="zc"), estimator)
    for row, same in zip(one, other, strict=True):
        np.testing.assert_allclose(same, row, atol=1e-9)


@pytest.mark.parametrize("estimator", [Estimator.GRPO, Estimator.DR_GRPO, Estimator.RLOO])
@SLOW
@given(reward=st.integers(-4, 4), noise=st.lists(st.floats(-1e-8, 1e-8), min_size=6, max_size=6))
def test_R2_groups_without_variance_teach_nothing(trajectory, estimator, reward, noise) -> None:
    table = episodes(trajectory, [(0, reward)] * 6)
    assert not any(row.any() for row in estimate(table, estimator))
    assert filter_groups(table, settings=FilterSettings())["kept"].to_pylist() == [False, False]


@pytest.mark.parametrize(
    ("estimator", "power"),
    [(Estimator.DR_GRPO, 1), (Estimator.RLOO, 1), (Estimator.GRPO, 0), (Estimator.GIGPO, 1)],
)
@SLOW
@given(rewards=REWARDS, scale=st.sampled_from([2, 3, 8]))
def test_the_scale_of_rewards_scales_advantages_or_cancels(
    trajectory, estimator, power, rewards, scale
) -> None:
    def clean(factor: int) -> pa.Table:
        table = episodes(trajectory, [(factor * a, factor * b) for a, b in rewards])
        zeros = pa.array([0.0] * 6, pa.float32())
        table = table.set_column(table.schema.get_field_index("penalty"), "penalty", zeros)
        none = pa.array([[0.0, 0.0]] * 6, table["penalties"].type)
        return table.set_column(table.schema.get_field_index("penalties"), "penalties", none)

    one, other = estimate(clean(1), estimator), estimate(clean(scale), estimator)
    for row, scaled in zip(one, other, strict=True):
        np.testing.assert_allclose(scaled, row * scale**power, atol=1e-4)


@pytest.mark.parametrize("strategy", [Strategy.TOP_P, Strategy.TOP_K, Strategy.MIN_P])
@pytest.mark.parametrize("largest", [True, False])
@SLOW
@given(rewards=REWARDS, scale=st.sampled_from([1e-3, 1e-2, 0.5, 64.0]))
def test_R5_R6_the_scale_of_rewards_keeps_the_same_groups(
    trajectory, strategy, largest, rewards, scale
) -> None:
    rows = [
        trajectory(group=f"g{index // 2}", member=index % 2, rewards=(0.0, float(pair[1])))
        for index, pair in enumerate(rewards)
    ]
    for row in rows:
        row.turns = [dataclasses.replace(turn, penalty=0.0) for turn in row.turns]
    scaled = [
        dataclasses.replace(
            row, turns=[dataclasses.replace(turn, reward=turn.reward * scale) for turn in row.turns]
        )
        for row in rows
    ]
    chosen = FilterSettings(strategy=strategy, value=0.5, largest=largest, metric=Metric.REWARD_STD)
    kept = [
        filter_groups(trajectory_table(item), settings=chosen)["kept"].to_pylist()
        for item in (rows, scaled)
    ]
    assert kept[0] == kept[1]
