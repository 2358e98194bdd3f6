"""Sweeps: their definitions, their verdicts, and a whole one on a real server."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from flows.errors import ExperimentError
from flows.experiment import Scale
from flows.summary import Summary
from flows.sweep import Arm, Sweep, SweepSettings, arm_changes, chosen_arms, load_sweep, sweep_names
from flows.sweep_report import markdown, write_report
from flows.sweep_result import SweepResult, Verdict, judged, load_result, save_result

ARMS: dict[str, Any] = {"low": {"seed": 1}, "high": {"seed": 2}}


@pytest.mark.parametrize("name", sweep_names())
def test_every_sweep_of_params_yaml_is_valid(name: str) -> None:
    loaded = load_sweep(name)
    assert len(loaded.arms) > 1
    digests = {arm.experiment(seed=0, scale=Scale.NANO).digest for arm in loaded.arms}
    assert len(digests) == len(loaded.arms)


def test_a_grid_has_an_arm_for_every_combination_by_its_values() -> None:
    settings = SweepSettings(
        hypothesis="h", seeds=5, grid={"a.b": [1, 2], "c": ["x"]}, reference="1 x"
    )
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
    good = {"hypothesis": "h", "seeds": 5, "arms": ARMS, "reference": "low"}
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
        ("name", "digest", "reason", "policy", "policy_digest", "report"), ""
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
    settings = SweepSettings.model_validate(
        {
            "hypothesis": "High is high.",
            "arms": ARMS,
            "reference": "low",
            "seeds": 5,
            "expect": expect,
        }
    )
    arms = [Arm(name=name, reference="low", overrides=ARMS[name]) for name in ARMS]
    return Sweep(name="demo", scale=Scale.NANO, settings=settings, arms=arms)


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


@pytest.fixture
def result() -> SweepResult:
    return judged(sweep_of({"high": "higher"}), runs(0.2), failed={"high, seed 9": "no <disk>"})


def test_results_are_written_for_programs(result: SweepResult, tmp_path: Path) -> None:
    save_result(result, tmp_path)
    assert load_result(tmp_path, "demo") == result
    assert json.loads((tmp_path / "demo.metrics.json").read_text())["verdict"] == "reproduced"
    frame = pl.read_parquet(tmp_path / "demo.parquet")
    assert frame.height == 10
    assert set(frame["arm"]) == {"low", "high"}


def test_a_report_of_a_loaded_result_is_the_same_report(
    result: SweepResult, tmp_path: Path
) -> None:
    save_result(result, tmp_path)
    write_report(result, tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_report(load_result(tmp_path, "demo"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_the_report_says_what_was_found_and_what_could_have_been(
    result: SweepResult, tmp_path: Path
) -> None:
    write_report(result, tmp_path)
    text, page = ((tmp_path / f"demo.{kind}").read_text() for kind in ("md", "html"))
    assert result.detectable is not None
    for part in (text, page):
        assert "Reproduced." in part
        assert f"a difference of {result.detectable:.3f} would have been told" in part
        assert "starpo sweep demo --seeds 5" in part
    assert "no &lt;disk&gt;" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    figure = ET.parse(tmp_path / "demo.svg").getroot()  # noqa: S314 - our own
    assert len(list(figure.iter("{http://www.w3.org/2000/svg}svg"))) == 3


def test_a_curve_metric_is_compared(tmp_path: Path) -> None:
    settings = sweep_of({"high": "higher"}).settings.model_copy(update={"metric": "curve/area"})
    sweep = sweep_of({}).model_copy(update={"settings": settings})
    values = judged(sweep, runs(0.2), failed={}).values
    assert values["low"][0] == pytest.approx((0.1 + 0.3) / 2)
    missing = sweep.model_copy(
        update={"settings": settings.model_copy(update={"metric": "curve/rise"})}
    )
    with pytest.raises(ExperimentError, match="no metric `curve/rise`"):
        judged(missing, runs(0.2), failed={})


def test_blocks_multiply_arms_and_each_is_compared_within_its_block() -> None:
    settings = SweepSettings(
        hypothesis="h",
        seeds=5,
        blocks={"one": {"env.tag": "Bandit"}, "two": {"env.tag": "FrozenLake"}},
        arms=ARMS,
        reference="low",
        expect={"two high": "higher"},
    )
    assert list(settings.blocks) == ["one", "two"]
    with pytest.raises(ValidationError, match="the arms are one low, one high, two low, two high"):
        SweepSettings.model_validate({**settings.model_dump(), "expect": {"high": "higher"}})


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
