"""Sweeps: their definitions, their verdicts, and a whole one on a real server."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from flows.errors import ExperimentError
from flows.experiment import Scale
from flows.summary import Summary
from flows.sweep import Sweep, SweepSettings, arm_changes, chosen_arms, load_sweep, sweep_names
from flows.sweep_report import Verdict, judged, markdown, write_results

ARMS: dict[str, Any] = {"low": {"seed": 1}, "high": {"seed": 2}}


@pytest.mark.parametrize("name", sweep_names())
def test_every_sweep_of_params_yaml_is_valid(name: str) -> None:
    loaded = load_sweep(name)
    assert len(loaded.arms) > 1
    digests = {arm.experiment(seed=0, scale=Scale.NANO).digest for arm in loaded.arms}
    assert len(digests) == len(loaded.arms)


def test_a_grid_has_an_arm_for_every_combination_by_its_values() -> None:
    settings = SweepSettings(hypothesis="h", grid={"a.b": [1, 2], "c": ["x"]}, reference="1 x")
    assert arm_changes(settings) == {"1 x": {"a.b": 1, "c": "x"}, "2 x": {"a.b": 2, "c": "x"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "middle"}, "no arm `middle`; the arms are low, high"),
        ({"expect": {"other": "lower"}}, "no arm `other`"),
        ({"grid": {"seed": [1]}}, "one of the two"),
        ({"seeds": 1}, "greater than or equal to 2"),
    ],
)
def test_I9_a_bad_definition_is_refused(changes: dict[str, Any], message: str) -> None:
    good = {"hypothesis": "h", "arms": ARMS, "reference": "low"}
    with pytest.raises(ValidationError, match=message):
        SweepSettings(**{**good, **changes})


def test_I9_an_unknown_sweep_or_arm_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ExperimentError, match="rollout_frequency"):
        load_sweep("rollout_frequencies")
    with pytest.raises(ExperimentError, match="its arms are 1, 2, 5, 10"):
        chosen_arms(load_sweep("rollout_frequency"), ["3"])


def test_the_reference_arm_is_always_run() -> None:
    names = [arm.name for arm in chosen_arms(load_sweep("rollout_frequency"), ["10"])]
    assert names == ["1", "10"]


def summary(success: float) -> Summary:
    empty: dict[str, Any] = dict.fromkeys(
        ("name", "reason", "policy", "policy_digest", "report"), ""
    )
    return Summary(
        **empty,
        rows=[],
        ending="finished",
        num_executed=1,
        num_reused=0,
        wall_s={},
        total_s=1.0,
        warnings=[],
        final={"evaluate/success": success},
        curve={0: 0.1, 10: success},
    )


def sweep_of(expect: dict[str, str]) -> Sweep:
    settings = SweepSettings(hypothesis="High is high.", arms=ARMS, reference="low", expect=expect)
    return Sweep(name="demo", scale=Scale.NANO, settings=settings, arms=[])


def runs(shift: float) -> dict[str, dict[int, Summary]]:
    values = [0.30, 0.42, 0.35, 0.50, 0.41]
    noise = [0.01, -0.01, 0.005, 0.0, -0.005]
    return {
        "low": {seed: summary(value) for seed, value in enumerate(values)},
        "high": {seed: summary(value + shift + noise[seed]) for seed, value in enumerate(values)},
    }


@pytest.mark.parametrize(
    ("shift", "expect", "verdict"),
    [
        (0.2, "higher", Verdict.REPRODUCED),
        (-0.2, "higher", Verdict.CONTRADICTED),
        (-0.2, "lower", Verdict.REPRODUCED),
        (0.001, "higher", Verdict.NOT_DISTINGUISHABLE),
    ],
)
def test_the_verdict_is_what_the_corrected_intervals_say(shift, expect, verdict) -> None:
    result = judged(sweep_of({"high": expect}), runs(shift), failed={})
    assert result.verdict is verdict
    assert verdict.capitalize() in markdown(result)


def test_without_the_arms_that_it_speaks_of_a_hypothesis_is_not_run() -> None:
    assert judged(sweep_of({}), runs(0.2), failed={}).verdict is Verdict.NOT_RUN
    one = {"low": runs(0.2)["low"]}
    assert judged(sweep_of({"high": "higher"}), one, failed={}).verdict is Verdict.NOT_RUN


def test_results_are_written_for_people_and_for_programs(tmp_path: Path) -> None:
    result = judged(sweep_of({"high": "higher"}), runs(0.2), failed={"high, seed 9": "no disk"})
    write_results(result, tmp_path)
    assert "no disk" in (tmp_path / "demo.md").read_text()
    assert json.loads((tmp_path / "demo.json").read_text())["verdict"] == "reproduced"
    frame = pl.read_parquet(tmp_path / "demo.parquet")
    assert frame.height == 10
    assert set(frame["arm"]) == {"low", "high"}


@pytest.mark.server
@pytest.mark.slow
def test_arms_share_what_they_have_in_common_and_a_failed_one_stops_none(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del server
    import flows.sweep
    from flows.defaults import HOME
    from flows.sweep_run import SweepName, plan, sweep

    base = {
        "env.tag": "Bandit",
        "train.iterations": 1,
        "warmstart.episodes": 320,
        "rollout.groups": 4,
        "rollout.group_size": 4,
        "evaluate.instances": 16,
    }
    definition = {
        "hypothesis": "No filter is worse.",
        "base": base,
        "arms": {
            "kept": {"filter.strategy": "top_p"},
            "none": {"filter.strategy": "none"},
            "broken": {"diagnose.max_gap": 1e-12},
        },
        "reference": "kept",
        "expect": {"none": "lower"},
        "seeds": 2,
    }
    params = flows.sweep.read_params()
    params["sweeps"]["turn_budget"] = definition
    monkeypatch.setattr(flows.sweep, "read_params", lambda: params)
    result = sweep(SweepName.turn_budget, store=str(tmp_path / "store"), workers=1)
    assert set(result["values"]) == {"kept", "none"}
    assert len(result["failed"]) == 2
    assert "sampler and trainer disagree" in result["failed"]["broken, seed 0"]
    # three runs start from one warm start and one first evaluation, two share a rollout
    assert result["num_reused"] >= 2 * 3 - 1
    assert (HOME / "results" / "turn_budget.md").exists()
    planned = plan(load_sweep("turn_budget"), seeds=None, arms=None)
    assert [run.arm for run in planned if not run.finished] == ["broken", "broken"]
