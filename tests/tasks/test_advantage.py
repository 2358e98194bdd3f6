"""Advantages of whole shards: the estimators' mathematics is tested in `models`, the joins here."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from models.critic import critic_parameters, save_critic
from models.nano import build_nano
from models.policy import save_policy
from models.settings import NanoSettings
from tasks.advantage import AdvantageJobSettings, advantage, advantage_metrics, kept_rows
from tasks.estimates import (
    AdvantageSettings,
    Estimates,
    Estimator,
    estimate_advantages,
    token_rewards,
)
from tasks.filter import filter_groups
from tasks.filter_rules import FilterSettings, Strategy
from tasks.lanes import Lanes
from tasks.shards import Kind, Shard, read_shard, rows_of, write_shard
from tasks.stage import Job
from tasks.trajectories import Status, trajectory_table

ALL = FilterSettings(strategy=Strategy.NONE)
MASK = np.array([0, 0, 0, 1, 1, 0, 0, 1, 1, 1], dtype=bool)  # of the fixture's trajectories
LAST = [4, 9]  # where its two turns end


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy whose critic says different things of different states."""
    settings = NanoSettings(width=16, heads=2, head_dim=8, feed_forward=16, vocabulary=300)
    folder = tmp_path_factory.mktemp("policy") / "nano"
    texts = [f"at {number},3 go Left || Down" for number in range(20)]
    save_policy(build_nano(texts, settings=settings, seed=0), folder)
    parameters = critic_parameters(folder)
    generator = torch.Generator().manual_seed(0)
    parameters["value_head.weight"] = torch.randn(1, 16, generator=generator)
    save_critic(parameters, folder)
    return folder


def _rows(trajectory, rewards: dict[str, list[float]], **changes) -> pa.Table:
    return trajectory_table(
        [
            trajectory(group=group, member=member, rewards=(0.0, reward), **changes)
            for group, members in rewards.items()
            for member, reward in enumerate(members)
        ]
    )


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Estimator.DR_GRPO, [0.75, -0.25, -0.25, -0.25]),
        (Estimator.RLOO, [1.0, -1 / 3, -1 / 3, -1 / 3]),
        (Estimator.GRPO, [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_each_sampled_token_has_its_episodes_advantage(trajectory, estimator, expected) -> None:
    table = _rows(trajectory, {"a": [1.0, 0.0, 0.0, 0.0], "b": [5.0, 5.0]})
    found = estimate_advantages(table, settings=AdvantageSettings(estimator=estimator)).advantages
    for row, value in zip(found, [*expected, 0.0, 0.0], strict=True):
        assert row == pytest.approx(np.where(MASK, value, 0.0), abs=1e-5)


def test_a_penalty_counts_in_the_comparison(trajectory) -> None:
    clean, penalised = trajectory(member=0), trajectory(member=1)
    penalised.turns[0] = dataclasses.replace(penalised.turns[0], penalty=-0.5)
    found = estimate_advantages(
        trajectory_table([clean, penalised]), settings=AdvantageSettings()
    ).advantages
    assert [row[-1] for row in found] == pytest.approx([0.2, -0.2])


def test_A2_rows_in_another_order_have_the_same_advantages(trajectory) -> None:
    table = _rows(trajectory, {"a": [1.0, 0.0, 0.5], "b": [2.0, 0.0, 3.0]})
    order = [4, 0, 3, 5, 1, 2]
    straight = estimate_advantages(table, settings=AdvantageSettings()).advantages
    mixed = estimate_advantages(table.take(order), settings=AdvantageSettings()).advantages
    for place, row in zip(order, mixed, strict=True):
        assert np.array_equal(row, straight[place])


def test_I5_kept_rows_are_those_of_kept_groups_that_did_not_fail(trajectory) -> None:
    rows = [
        trajectory(group=group, member=member, status=status)
        for group in "ab"
        for member, status in enumerate([Status.FINISHED, Status.ERRORED, Status.TRUNCATED])
    ]
    groups = pa.table({"group": ["a", "b"], "kept": [False, True]})
    assert kept_rows(trajectory_table(rows), groups)["episode"].to_pylist() == ["b/0", "b/2"]


def test_A16_no_kept_group_leaves_no_row(trajectory) -> None:
    table = _rows(trajectory, {"a": [1.0, 0.0]})
    rows = kept_rows(table, pa.table({"group": ["a"], "kept": [False]}))
    assert rows.num_rows == 0
    assert estimate_advantages(rows, settings=AdvantageSettings()).advantages == []
    settings = AdvantageSettings(estimator=Estimator.GAE)
    assert estimate_advantages(rows, values=[], settings=settings).advantages == []


def test_R3_a_reward_is_paid_where_its_turn_ends_also_when_it_is_zero() -> None:
    turn = np.array([-1, 0, 0, -1, 1, 1, -1, 2], dtype=np.int16)
    assert token_rewards(turn, np.array([2.0, 0.0, 3.0])).tolist() == [0, 0, 2, 0, 0, 0, 0, 3]


@pytest.mark.parametrize("estimator", [Estimator.GAE, Estimator.BILEVEL_GAE])
@pytest.mark.parametrize("status", [Status.FINISHED, Status.TRUNCATED])
def test_A11_only_a_truncated_episode_goes_on_with_the_value_of_its_own_end(
    trajectory, estimator, status
) -> None:
    table = trajectory_table(
        [trajectory(member=member, rewards=(1.0, 2.0), status=status) for member in range(2)]
    )
    values = [np.linspace(0.0, 1.0, 11, dtype=np.float32), np.full(11, 9.0, dtype=np.float32)]
    settings = AdvantageSettings(estimator=estimator, whiten=False)
    found = estimate_advantages(table, values=values, settings=settings)
    bootstrap = 1.0 if status is Status.TRUNCATED else 0.0
    # gamma = lambda = 1: the advantage is what is still paid, minus the value of the state
    paid = 0.9 * (np.arange(10) <= LAST[0]) + 1.9  # each turn costs a penalty of 0.1
    expected = np.where(MASK, paid + bootstrap - values[0][:-1], 0.0)
    if estimator is Estimator.GAE:
        assert found.advantages[0] == pytest.approx(expected, abs=1e-6)
    assert found.advantages[0][LAST[1]] == pytest.approx(expected[LAST[1]], abs=1e-6)
    assert not found.advantages[0][~MASK].any()
    assert found.returns[0][MASK] == pytest.approx(
        found.advantages[0][MASK] + values[0][:-1][MASK], abs=1e-6
    )
    assert found.values[0] == pytest.approx(values[0][:-1])


def test_whitening_is_over_the_sampled_tokens_of_the_whole_batch(trajectory) -> None:
    rows = [
        trajectory(member=0, rewards=(0.0, 1.0)),
        trajectory(member=1, rewards=(3.0,), turns=((4, 6),)),
    ]
    values = [np.zeros(11, dtype=np.float32)] * 2
    raw, white = (
        estimate_advantages(
            trajectory_table(rows),
            values=values,
            settings=AdvantageSettings(estimator=Estimator.GAE, whiten=whiten),
        )
        for whiten in (False, True)
    )
    masks = [MASK, np.arange(10) >= 4]
    sampled = np.concatenate([row[mask] for row, mask in zip(raw.advantages, masks, strict=True)])
    for before, after, mask in zip(raw.advantages, white.advantages, masks, strict=True):
        expected = (before - sampled.mean()) / np.sqrt(sampled.var(ddof=1) + 1e-8)
        assert after == pytest.approx(np.where(mask, expected, 0.0))
    assert np.array_equal(raw.returns[0], white.returns[0])


def _run(
    folder: Path, table: pa.Table, *, policy: Path, workers: int = 1, lanes: int = 2, **options
) -> tuple[Shard, Job[AdvantageJobSettings]]:
    """The stage itself, on files."""
    folder.mkdir()
    facts = {"cut_replies": options.pop("cut_replies", "keep")}
    paths = {name: folder / f"in-{name}.parquet" for name in ("trajectories", "groups")}
    write_shard(paths["trajectories"], table, kind=Kind.TRAJECTORIES, metadata=facts)
    groups = filter_groups(table, settings=ALL)
    write_shard(paths["groups"], groups, kind=Kind.GROUPS, metadata={})
    with Lanes(workers=workers) as pool:
        job = Job(
            settings=AdvantageJobSettings(advantage=AdvantageSettings(**options), lanes=lanes),
            seed=0,
            inputs={**paths, "policy": policy},
            digests={},
            folder=folder,
            lanes=pool,
            description={},
        )
        advantage.fn(job)
    return read_shard(job.outputs["advantages"], kind=Kind.ADVANTAGES), job


def test_I7_workers_and_lanes_give_the_same_values_to_the_same_rows(
    trajectory, policy, tmp_path
) -> None:
    table = trajectory_table(
        [trajectory(member=size, turns=((3, 2), (2, size))) for size in range(1, 6)]
    )
    options = {"policy": policy, "estimator": Estimator.BILEVEL_GAE}
    one, _ = _run(tmp_path / "one", table, **options)
    two, _ = _run(tmp_path / "two", table, workers=2, **options)
    assert one.table.equals(two.table)
    single, _ = _run(tmp_path / "single", table, lanes=1, **options)
    for name in ("values", "advantages"):
        for row, other in zip(rows_of(one.table, name), rows_of(single.table, name), strict=True):
            assert row == pytest.approx(other, abs=1e-5)
    assert np.std(np.concatenate(rows_of(one.table, "values"))) > 0.1


def test_C2_masked_cut_replies_are_compared_with_but_not_learned_from(
    trajectory, policy, tmp_path
) -> None:
    rows = [trajectory(member=member, rewards=(0.0, float(member))) for member in range(3)]
    rows[2].turns[0] = dataclasses.replace(rows[2].turns[0], stop_reason="length")
    table = trajectory_table(rows)
    kept, _ = _run(tmp_path / "kept", table, policy=policy)
    masked, _ = _run(tmp_path / "masked", table, policy=policy, cut_replies="mask")
    before, after = rows_of(kept.table, "advantages"), rows_of(masked.table, "advantages")
    assert [row[-1] for row in before] == pytest.approx([-1.0, 0.0, 1.0])
    assert [row[-1] for row in after] == pytest.approx([-1.0, 0.0, 0.0])
    assert not after[2].any()


def test_the_share_without_success_is_that_of_groups_where_nobody_won(trajectory) -> None:
    table = _rows(trajectory, {"a": [1.0, 0.0], "b": [0.0, 0.0]})
    advantages = [np.where(MASK, value, 0.0) for value in (1.0, -1.0, 3.0, -3.0)]
    metrics = advantage_metrics(table, Estimates(advantages, advantages, advantages))
    assert metrics["advantage/mass_without_success"] == pytest.approx(0.75)
    assert metrics["advantage/mean"] == pytest.approx(0.0)
    assert metrics["advantage/std"] == pytest.approx(np.sqrt(5))
    assert metrics["advantage/episodes"] == 4


def test_A16_advantages_of_nothing_are_an_empty_shard(trajectory, policy, tmp_path) -> None:
    table = _rows(trajectory, {"a": [1.0]})  # one member: never kept
    shard, job = _run(tmp_path / "empty", table, policy=policy)
    assert shard.table.num_rows == 0
    assert job.metrics == {"advantage/episodes": 0.0}
    shard, _ = _run(tmp_path / "critic", table, policy=policy, estimator=Estimator.GAE)
    assert shard.table.num_rows == 0
