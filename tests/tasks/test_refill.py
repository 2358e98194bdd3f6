"""Refilling and loss scaling after the filter."""

from pathlib import Path

import numpy as np
import pytest

from tasks.estimates import AdvantageSettings, estimate_advantages
from tasks.filter import filter_groups
from tasks.filter_rules import FilterSettings, LossScaling, loss_scale
from tasks.lanes import Lanes
from tasks.refill import RefillJobSettings, refill
from tasks.rollout import RolloutSettings, training_episodes
from tasks.shards import Kind, read_shard, write_shard
from tasks.stage import Job
from tasks.trajectories import trajectory_table

ALIVE = FilterSettings(value=1.0)
FACTS = {
    "sampling": {"temperature": 1.0},
    "thinking": True,
    "engine": "torch",
    "cut_replies": "keep",
    "asked": 8,
}


@pytest.fixture
def joined(trajectory, tmp_path: Path):
    """Two rounds: of a, b the second is dead; of c, d both teach; room for two groups."""
    inputs = {}
    for index, spreads in enumerate([{"a": 1.0, "b": 0.0}, {"c": 1.0, "d": 2.0}]):
        table = trajectory_table(
            [
                trajectory(group=group, member=member, rewards=(0.0, spread * (member % 2)))
                for group, spread in spreads.items()
                for member in range(4)
            ]
        )
        inputs[f"trajectories_{index}"] = tmp_path / f"t{index}.parquet"
        inputs[f"groups_{index}"] = tmp_path / f"g{index}.parquet"
        write_shard(inputs[f"trajectories_{index}"], table, kind=Kind.TRAJECTORIES, metadata=FACTS)
        groups = filter_groups(table, settings=ALIVE)
        write_shard(inputs[f"groups_{index}"], groups, kind=Kind.GROUPS, metadata={})
    (tmp_path / "out").mkdir()
    job = Job(
        settings=RefillJobSettings(num_groups=2, rounds=2),
        seed=0,
        inputs=inputs,
        digests={},
        folder=tmp_path / "out",
        lanes=Lanes(),
        description={},
    )
    refill.fn(job)
    return job


def test_A16_kept_groups_of_later_rounds_fill_the_place_of_dead_ones(joined) -> None:
    groups = read_shard(joined.outputs["groups"], kind=Kind.GROUPS).table
    rows = read_shard(joined.outputs["trajectories"], kind=Kind.TRAJECTORIES)
    assert groups["group"].to_pylist() == ["a", "c"]
    assert groups["kept"].to_pylist() == [True, True]
    assert sorted(set(rows.table["group"].to_pylist())) == ["a", "c"]
    assert rows.metadata["asked"] == 8
    assert rows.metadata["cut_replies"] == "keep"
    assert joined.metrics["refill/kept_share"] == 0.5


def test_every_round_has_its_own_instances() -> None:
    settings = RolloutSettings(groups=3, group_size=2)
    options = {"tag": "Bandit", "iteration": 1, "seed": 0}
    first, second = (
        {item.env_seed for item in training_episodes(settings, round_=round_, **options)}
        for round_ in (0, 1)
    )
    assert len(first) == len(second) == 3
    assert not first & second


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [(LossScaling.NONE, 1.0), (LossScaling.LINEAR, 0.25), (LossScaling.SQRT, 0.5)],
)
def test_the_loss_shrinks_with_the_share_of_kept_groups(scaling, expected) -> None:
    assert loss_scale(0.25, scaling=scaling) == expected


def weighted(trajectory, **options) -> list[float]:
    table = trajectory_table(
        [
            trajectory(group=group, member=member, rewards=(0.0, reward), turns=turns)
            for group, rewards, turns in (
                ("a", (0.0, 1.0), ((3, 2), (2, 3))),
                ("b", (0.0, 4.0), ((3, 4), (2, 6))),
            )
            for member, reward in enumerate(rewards)
        ]
    )
    found = estimate_advantages(table, settings=AdvantageSettings(**options)).advantages
    return [float(row[-1]) for row in found]


def test_soft_reweighting_multiplies_by_the_groups_share_of_the_largest_deviation(trajectory):
    assert weighted(trajectory) == pytest.approx([-0.5, 0.5, -2.0, 2.0])
    found = weighted(trajectory, soft_reweighting=True)
    assert found == pytest.approx([-0.125, 0.125, -2.0, 2.0])


def test_length_weighting_gives_every_episode_the_same_mass(trajectory):
    found = weighted(trajectory, length_weighting=True)
    assert found == pytest.approx([-0.5 * 1.5, 0.5 * 1.5, -2.0 * 0.75, 2.0 * 0.75])


def test_reinforce_pp_is_whitened_rewards_to_go(trajectory) -> None:
    table = trajectory_table([trajectory(member=m, rewards=(1.0, 2.0 * m)) for m in range(3)])
    found = estimate_advantages(table, settings=AdvantageSettings(estimator="reinforce_pp"))
    assert found.advantages[0][3] < found.advantages[1][3] < found.advantages[2][3]
    gap = found.advantages[2][3] - found.advantages[1][3]
    assert gap == pytest.approx(found.advantages[1][3] - found.advantages[0][3])


def test_a_token_cost_lowers_the_return_of_its_episode(trajectory) -> None:
    table = trajectory_table([trajectory(member=m, rewards=(0.0, 1.0)) for m in range(2)])

    costs = [np.full(10, 0.1), np.zeros(10)]
    found = estimate_advantages(table, settings=AdvantageSettings(), token_costs=costs)
    assert [row[-1] for row in found.advantages] == pytest.approx([-0.5, 0.5])


def test_normalised_returns_are_paid_at_the_end(trajectory) -> None:

    table = trajectory_table([trajectory(member=m, rewards=(3.0, 2.0 * m)) for m in range(2)])
    values = [np.zeros(11, dtype=np.float32)] * 2
    settings = AdvantageSettings(estimator="gae", whiten=False, normalise="mean", lam=0.0)
    found = estimate_advantages(table, settings=settings, values=values)
    assert [row[-1] for row in found.advantages] == pytest.approx([-1.0, 1.0])
    assert all(row[4] == 0.0 for row in found.advantages)


def test_gigpo_adds_the_advantage_of_turns_from_the_same_state(trajectory) -> None:
    # all turns of the fixture begin in the same state: four turns are compared
    table = trajectory_table([trajectory(member=m, rewards=(0.0, float(m))) for m in range(2)])
    plain = estimate_advantages(table, settings=AdvantageSettings())
    found = estimate_advantages(table, settings=AdvantageSettings(estimator="gigpo"))
    to_go = [-0.2, -0.1, 0.8, 0.9]
    extra = [value - sum(to_go) / 4 for value in to_go]
    for row, (first, last) in enumerate(((0, 1), (2, 3))):
        step = found.advantages[row] - plain.advantages[row]
        assert step[[4, 9]] == pytest.approx([extra[first], extra[last]], abs=1e-6)
