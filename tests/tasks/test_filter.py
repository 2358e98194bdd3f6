import subprocess
import sys

import numpy as np

from tasks.advantage import kept_rows
from tasks.estimates import AdvantageSettings, estimate_advantages
from tasks.filter import consumption, filter_groups, filter_stage
from tasks.filter_rules import FilterSettings, Strategy
from tasks.store import Reference
from tasks.trajectories import Status, trajectory_table

ALL = FilterSettings(strategy=Strategy.NONE)


def _group(trajectory, name: str, rewards: list[float], statuses=None):
    statuses = statuses or [Status.FINISHED] * len(rewards)
    return [
        trajectory(group=name, member=member, rewards=(0.0, reward), status=status)
        for member, (reward, status) in enumerate(zip(rewards, statuses, strict=True))
    ]


def test_A1_a_group_with_one_usable_member_is_never_kept(trajectory) -> None:
    errored = [Status.FINISHED, Status.ERRORED]
    rows = [
        *_group(trajectory, "a", [1.0, 0.0], errored),
        *_group(trajectory, "b", [1.0]),
        *_group(trajectory, "c", [1.0, 0.0]),
    ]
    groups = filter_groups(trajectory_table(rows), settings=ALL).to_pylist()
    assert {row["group"]: row["kept"] for row in groups} == {"a": False, "b": False, "c": True}
    assert [row["num_dropped"] for row in groups] == [1, 0, 0]


def test_A5_an_errored_episode_changes_nothing_for_the_others(trajectory) -> None:
    whole = _group(trajectory, "a", [1.0, 0.0, 1.0])
    statuses = [Status.FINISHED] * 3 + [Status.ERRORED]
    poisoned = _group(trajectory, "a", [1.0, 0.0, 1.0, 99.0], statuses)
    found = []
    for rows in (whole, poisoned):
        table = trajectory_table(rows)
        kept = kept_rows(table, filter_groups(table, settings=ALL))
        found.append(estimate_advantages(kept, settings=AdvantageSettings()).advantages)
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first, second)


def test_I4_the_order_of_rows_changes_no_decision(trajectory) -> None:
    rows = [row for name in "abcd" for row in _group(trajectory, name, [1.0, 0.0, ord(name) / 50])]
    settings = FilterSettings(strategy=Strategy.TOP_K, value=0.5)
    straight = filter_groups(trajectory_table(rows), settings=settings)
    mixed = filter_groups(trajectory_table(rows[::-1]), settings=settings)
    assert straight["kept"].to_pylist() == mixed["kept"].to_pylist()


def test_E10_an_address_is_made_of_digests_and_equal_in_every_process() -> None:
    program = (
        "from tasks.filter import filter_stage\n"
        "from tasks.filter_rules import FilterSettings\n"
        "from tasks.store import Reference\n"
        "inputs = {'trajectories': Reference(digest='ab', suffix='.parquet', num_bytes=%d)}\n"
        "print(filter_stage.address(settings=FilterSettings(), inputs=inputs, seed=3))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program % size], capture_output=True, text=True, check=True
        ).stdout.strip()
        for size in (1, 2)
    }
    reference = Reference(digest="ab")
    inputs = {"trajectories": reference}
    assert found == {filter_stage.address(settings=FilterSettings(), inputs=inputs, seed=3)}
    other = {"trajectories": Reference(digest="cd")}
    assert filter_stage.address(settings=FilterSettings(), inputs=other, seed=3) not in found


def test_L13_what_is_learned_from_is_reported_by_kind_and_length(trajectory) -> None:
    rows = [*_group(trajectory, "a", [1.0, 0.0]), *_group(trajectory, "b", [1.0, 1.0])]
    for row in rows[:2]:
        row.stratum = "length 2"
    rows[2:] = [
        trajectory(group="b", member=member, turns=((3, 4), (2, 6)), rewards=(0.0, 1.0))
        for member in range(2)
    ]
    table = trajectory_table(rows)
    found = consumption(table, filter_groups(table, settings=FilterSettings()))
    assert found == {
        "filter/by/length 1/kept_share": 0.0,
        "filter/by/length 2/kept_share": 1.0,
        "filter/length": 7.5,
        "filter/length_kept": 5.0,
    }
