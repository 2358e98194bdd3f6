"""Numbers of a trajectory shard, against counts by hand."""

import dataclasses
import math
import warnings

import numpy as np
import pytest

from tasks.summary import group_rows, learning_returns, summarise
from tasks.trajectories import Status, trajectory_table


def test_a_learning_return_is_the_rewards_plus_the_penalties(trajectory) -> None:
    rows = [trajectory(rewards=(0.5, 1.0)), trajectory(member=1, status=Status.ERRORED)]
    found = learning_returns(trajectory_table(rows))
    assert found[0] == pytest.approx(0.5 + 1.0 - 0.1 - 0.1)
    assert np.isnan(found[1])


def test_I4_groups_are_found_by_id_wherever_their_rows_lie(trajectory) -> None:
    rows = [trajectory(group=group) for group in ("b", "a", "b", "c", "a")]
    found = group_rows(trajectory_table(rows))
    assert {group: list(index) for group, index in found.items()} == {
        "a": [1, 4],
        "b": [0, 2],
        "c": [3],
    }
    assert list(found) == ["a", "b", "c"]


def test_each_number_equals_a_count_by_hand(trajectory) -> None:
    lost = trajectory(group="a", member=1, rewards=(0.0, -1.0), status=Status.TRUNCATED)
    lost.turns[1] = dataclasses.replace(lost.turns[1], valid=False, stop_reason="length")
    rows = [trajectory(group="a"), lost]
    rows += [trajectory(group="b", turns=((3, 4),), rewards=(2.0,))]
    found = summarise(trajectory_table(rows), prefix="rollout")
    expected = {
        "success": 2 / 3,
        "return": (0.8 - 1.2 + 1.9) / 3,
        "penalty": -(0.2 + 0.2 + 0.1) / 3,
        "valid_turns": 4 / 5,
        "reply_tokens": (5 + 5 + 4) / 5,
        "turns": 5 / 3,
        "actions": 5 / 3,
        "episodes": 3,
        "finished": 2 / 3,
        "truncated": 1 / 3,
        "errored": 0,
        "replies_cut": 1 / 5,
        "sampled_tokens": 14,
        "tokens": 10 + 10 + 7,
        "group_return_std": 2.0 / math.sqrt(2),
    }
    assert found == pytest.approx({f"rollout/{name}": value for name, value in expected.items()})


def test_R15_a_truncated_episode_may_be_a_success_and_a_finished_one_a_failure(trajectory) -> None:
    won = trajectory(member=0, rewards=(0.0, 1.0), status=Status.TRUNCATED)
    lost = trajectory(member=1, rewards=(0.0, -1.0), status=Status.FINISHED)
    row_won, row_lost = trajectory_table([won, lost]).to_pylist()
    assert (row_won["truncated"], row_won["terminated"], row_won["success"]) == (True, False, True)
    assert (row_lost["truncated"], row_lost["terminated"]) == (False, True)
    assert not row_lost["success"]


def test_I5_failed_episodes_are_counted_and_leave_every_number_finite(trajectory) -> None:
    errored = Status.ERRORED
    rows = [
        trajectory(group="a", rewards=(0.0, 1.0)),
        trajectory(group="a", member=1, rewards=(0.0, 3.0)),
        trajectory(group="b"),
        trajectory(group="b", member=1, status=errored),
        trajectory(group="c", status=errored),
        trajectory(group="c", member=1, status=errored),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = summarise(trajectory_table(rows), prefix="rollout")
        alone = summarise(trajectory_table(rows[4:]), prefix="rollout")
    assert found["rollout/errored"] == 3
    assert found["rollout/group_return_std"] == pytest.approx(math.sqrt(2))  # only `a` has one
    assert all(math.isfinite(value) for value in found.values())
    assert alone["rollout/errored"] == 2
    assert "rollout/return" not in alone
    assert all(math.isfinite(value) for value in alone.values())
