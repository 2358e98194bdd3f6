"""Stored rollouts asked again: what another filter or estimator would have done."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.asking import Asked, ask_advantage, ask_filter, settings_grid
from tasks.audit import Audit, audit_iteration
from tasks.errors import SettingsError
from tasks.estimates import AdvantageSettings, Estimator, estimate_advantages
from tasks.filter import filter_groups
from tasks.filter_rules import FilterSettings, Metric, Strategy
from tasks.shards import Kind, full_log_probs, ragged, rows_of, write_shard
from tasks.trajectories import trajectory_table

FILTER = FilterSettings()


def rollout(trajectory, spreads: list[float]) -> pa.Table:
    return trajectory_table(
        [
            trajectory(group=f"g{index}", member=member, rewards=(0.0, spread * (member % 2)))
            for index, spread in enumerate(spreads)
            for member in range(4)
        ]
    )


def test_a_grid_has_every_combination_by_name() -> None:
    grid = settings_grid(FILTER, ["strategy=top_p,top_k", "filter.value=0.5,0.9"], prefix="filter")
    assert list(grid) == [
        "strategy=top_p value=0.5",
        "strategy=top_p value=0.9",
        "strategy=top_k value=0.5",
        "strategy=top_k value=0.9",
    ]
    assert grid["strategy=top_k value=0.5"] == FilterSettings(strategy=Strategy.TOP_K, value=0.5)


@pytest.mark.parametrize("change", ["strategies=top_p", "value", "value=2"])
def test_I9_a_wrong_setting_is_refused(change: str) -> None:
    with pytest.raises(SettingsError, match="value|strategies"):
        settings_grid(FILTER, [change], prefix="filter")


def test_the_stored_filter_agrees_with_itself_and_keeps_what_it_kept(trajectory) -> None:
    table = rollout(trajectory, [1.0, 0.0, 2.0, 0.1])
    stored = filter_groups(table, settings=FILTER)
    answer = ask_filter([Asked(table, stored)], FILTER)
    assert answer["agreement"] == 1.0
    assert answer["kept"] == stored["kept"].to_pylist().count(True)


def test_agreement_is_the_share_of_groups_decided_alike(trajectory) -> None:
    table = rollout(trajectory, [1.0, 1.0, 1.0, 0.1])
    stored = filter_groups(table, settings=FilterSettings(strategy=Strategy.NONE))
    one = FilterSettings(strategy=Strategy.TOP_K_ABS, value=1)
    assert ask_filter([Asked(table, stored)], one)["agreement"] == 0.25


def test_equal_differences_count_as_so_many_episodes(trajectory) -> None:
    answer = ask_filter([Asked(rollout(trajectory, [1.0, 1.0]))], FilterSettings(value=1.0))
    assert answer["effective_episodes"] == pytest.approx(8.0)
    assert answer["spread"] == pytest.approx(0.5)


def test_signs_of_the_same_estimator_agree(trajectory) -> None:
    table = rollout(trajectory, [1.0, 3.0])
    groups = filter_groups(table, settings=FilterSettings(strategy=Strategy.NONE))
    found = estimate_advantages(table, settings=AdvantageSettings())
    stored = table.select(["episode", "sequence"]).append_column(
        "advantages", ragged([-row for row in found.advantages], pa.float32())
    )
    asked = [Asked(table, groups, stored)]
    assert ask_advantage(asked, AdvantageSettings())["sign_agreement"] == 0.0
    same = stored.set_column(2, "advantages", ragged(found.advantages, pa.float32()))
    rloo = AdvantageSettings(estimator=Estimator.RLOO)
    assert ask_advantage([Asked(table, groups, same)], rloo)["sign_agreement"] == 1.0


def test_a_critic_cannot_be_asked_without_a_model(trajectory) -> None:
    with pytest.raises(SettingsError, match="critic"):
        ask_advantage(
            [Asked(rollout(trajectory, [1.0]))], AdvantageSettings(estimator=Estimator.GAE)
        )


@pytest.mark.parametrize(
    ("metric", "expected"),
    [(Metric.LENGTH, [5.0, 5.0]), (Metric.ENTROPY, None), (Metric.ENTROPY_VARIANCE, None)],
)
def test_scores_of_lengths_and_surprisals(trajectory, metric, expected) -> None:
    table = rollout(trajectory, [1.0, 1.0])
    scores = filter_groups(table, settings=FilterSettings(metric=metric))["score"].to_pylist()
    if expected is None:
        masks, logprobs = rows_of(table, "sampled"), rows_of(table, "logprobs")
        surprisal = [-row[mask].mean() for row, mask in zip(logprobs, masks, strict=True)]
        members = np.array(surprisal, dtype=np.float64).reshape(2, 4)
        entropy = metric is Metric.ENTROPY
        expected = members.mean(1) if entropy else members.var(1, ddof=1)
    assert scores == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def shards(trajectory, tmp_path: Path) -> dict[str, Path]:
    table = rollout(trajectory, [1.0, 0.0])
    groups = filter_groups(table, settings=FILTER)
    rows = table.filter(pa.array([name == "g0" for name in table["group"].to_pylist()]))
    found = estimate_advantages(rows, settings=AdvantageSettings())
    masks = rows_of(rows, "sampled")
    stored = [row[mask] for row, mask in zip(full_log_probs(rows), masks, strict=True)]
    keys = {name: rows[name] for name in ("episode", "sequence")}
    tables = {
        Kind.TRAJECTORIES: table,
        Kind.GROUPS: groups,
        Kind.ADVANTAGES: pa.table(
            {
                **keys,
                **{name: rows[name] for name in ("group", "weight")},
                **{
                    name: ragged(found.advantages, pa.float32())
                    for name in ("advantages", "returns", "values")
                },
            }
        ),
        Kind.LOG_PROBS: pa.table(
            {
                **keys,
                "trainer_logprobs": ragged(stored, pa.float32()),
                "sampler_logprobs": ragged(stored, pa.float32()),
            }
        ),
    }
    paths = {}
    for kind, content in tables.items():
        paths[kind.value] = tmp_path / f"{kind}.parquet"
        write_shard(paths[kind.value], content, kind=kind, metadata={})
    return paths


def audited(shards: dict[str, Path]) -> Audit:
    audit = Audit()
    audit_iteration(audit, shards, label="iteration 0000", max_gap=0.02)
    return audit


def change(path: Path, kind: Kind, name: str, column: pa.Array) -> None:
    from tasks.shards import read_shard

    table = read_shard(path, kind=kind).table
    table = table.set_column(table.schema.get_field_index(name), name, column)
    write_shard(path, table, kind=kind, metadata={})


def found_rows(audit: Audit) -> dict[str, int]:
    return {name: row.num_rows for name, row in audit.findings.items() if row.num_rows}


def test_a_right_run_has_a_clean_audit(shards: dict[str, Path]) -> None:
    audit = audited(shards)
    assert audit.is_clean
    assert audit.tokens == 80


def test_T10_an_advantage_on_a_token_that_was_not_sampled_is_found(shards) -> None:
    rows = [np.ones(10)] * 4
    change(shards["advantages"], Kind.ADVANTAGES, "advantages", ragged(rows, pa.float32()))
    assert found_rows(audited(shards)) == {"in the loss and not sampled": 4 * 5}


def test_a_sampled_token_without_a_log_prob_is_found(shards) -> None:
    rows = [np.full(10, np.nan)] * 8
    column = ragged(rows, pa.float32(), nullable=True)
    change(shards["trajectories"], Kind.TRAJECTORIES, "logprobs", column)
    assert found_rows(audited(shards)) == {"sampled and not in the loss": 4 * 5}


def test_I5_an_episode_that_vanished_is_found(shards) -> None:
    from tasks.shards import read_shard

    table = read_shard(shards["advantages"], kind=Kind.ADVANTAGES).table.slice(1)
    write_shard(shards["advantages"], table, kind=Kind.ADVANTAGES, metadata={})
    assert found_rows(audited(shards)) == {"kept and not learned from": 1}


def test_A1_an_episode_of_a_group_that_was_not_kept_is_found(shards) -> None:
    kept = pa.array([False, False])
    change(shards["groups"], Kind.GROUPS, "kept", kept)
    assert found_rows(audited(shards)) == {"learned from and not sampled in a rollout": 4}


def test_L5_a_gap_between_sampler_and_trainer_is_found(shards) -> None:
    rows = [np.full(5, -9.0)] * 4
    change(shards["log_probs"], Kind.LOG_PROBS, "trainer_logprobs", ragged(rows, pa.float32()))
    assert found_rows(audited(shards)) == {"log-prob gap above 0.02": 20}
