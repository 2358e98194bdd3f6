"""The committed results: what they say follows from their own numbers; how to make them again."""

import json

import polars as pl
import pytest

from flows.defaults import ROOT
from flows.experiment import read_params
from flows.findings import judged_findings
from flows.sweep import load_definition
from flows.sweep_report import rendered
from flows.sweep_result import SweepResult, load_result
from tasks.statistics import compare_arms, mean_interval

RESULTS = ROOT / "results"
STUDIES = list(read_params()["study"]["sweeps"])
SEEDS = int(read_params()["study"]["seeds"])


@pytest.fixture(params=STUDIES)
def result(request: pytest.FixtureRequest) -> SweepResult:
    return load_result(RESULTS, request.param)


def test_E6_each_figure_has_one_command_and_intervals(result: SweepResult) -> None:
    page = (RESULTS / f"{result.name}.html").read_text()
    assert f"starpo sweep {result.name}" in page
    assert result.provenance["commit"] in page
    assert not result.provenance["dirty"]
    for point in [point for curve in result.curves.values() for point in curve]:
        spread = None in {point.low, point.high}
        assert spread or point.low <= point.mean <= point.high


def test_every_arm_was_run_with_every_seed(result: SweepResult) -> None:
    assert not result.failed
    assert set(result.values) == {row.arm for row in result.arms}
    assert all(set(numbers) == set(range(SEEDS)) for numbers in result.values.values())
    assert result.hypothesis == load_definition(result.name).hypothesis


def test_what_a_table_says_follows_from_its_numbers(result: SweepResult) -> None:
    references = {row.arm: row.reference for row in result.arms}
    compared = compare_arms(result.values, references=references)
    for row in result.arms:
        assert row.mean == pytest.approx(mean_interval(list(result.values[row.arm].values())).mean)
        if row.arm in compared:
            found = compared[row.arm]
            assert row.difference == pytest.approx(found.difference.mean)
            assert row.p_value == pytest.approx(found.p_value)
            assert row.distinguishable == found.is_distinguishable
    table = pl.read_parquet(RESULTS / f"{result.name}.parquet")
    assert {
        (arm, seed): value for arm, seed, value in table.select("arm", "seed", "value").iter_rows()
    } == {
        (arm, seed): value
        for arm, numbers in result.values.items()
        for seed, value in numbers.items()
    }


def test_a_report_is_what_its_result_gives_now(result: SweepResult) -> None:
    for suffix, text in rendered(result).items():
        assert (RESULTS / f"{result.name}{suffix}").read_text() == text


def test_the_table_of_findings_has_the_verdicts_of_the_results() -> None:
    rows = judged_findings(RESULTS)
    assert [row.number for row in rows] == list(range(1, 17))
    text = (RESULTS / "README.md").read_text()
    for row in rows:
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {row.number} |"))
        assert row.verdict.value in line
    for name in STUDIES:
        metrics = json.loads((RESULTS / f"{name}.metrics.json").read_text())
        assert metrics["verdict"] == load_result(RESULTS, name).verdict
