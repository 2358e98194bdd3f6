import dataclasses
import re
from html.parser import HTMLParser

import pytest

from tasks.evaluate import evaluation_metrics
from tasks.pages import render
from tasks.report import Evaluation, ReportSettings, page_of
from tasks.trajectories import trajectory_table


@pytest.fixture
def settings() -> ReportSettings:
    return ReportSettings(
        name="demo",
        experiment={"env.tag": "Bandit", "seed": 3, "policy.path": None, "rollout.groups": 4},
        history={
            0: {"rollout/success": 0.25, "evaluate/success": 0.5},
            1: {"rollout/success": 0.75},
        },
        ending="finished",
        reason="",
    )


def _evaluation(trajectory, wins: list[bool], reply: str = "hello") -> Evaluation:
    rows = []
    for member, won in enumerate(wins):
        row = trajectory(member=member, rewards=(0.0, 1.0 if won else 0.0))
        row.turns = [dataclasses.replace(turn, reply=reply) for turn in row.turns]
        rows.append(row)
    table = trajectory_table(rows)
    return Evaluation(table, evaluation_metrics(table))


def _page(settings, before: Evaluation, after: Evaluation) -> str:
    provenance = {"commit": "abc", "packages": {"torch": "2.13.0"}}
    return render(
        "report.html", page_of(settings, before=before, after=after, provenance=provenance)
    )


def test_the_page_states_success_and_intervals_of_the_episodes(settings, trajectory) -> None:
    page = _page(
        settings,
        _evaluation(trajectory, [True] * 10 + [False] * 30),
        _evaluation(trajectory, [True] * 30 + [False] * 10),
    )
    assert "went from 0.25 to <b>0.75</b>" in page
    assert "0.14 to 0.40 before, 0.60 to 0.86 after; they do not overlap." in page


def test_overlapping_intervals_are_called_that(settings, trajectory) -> None:
    page = _page(
        settings,
        _evaluation(trajectory, [True, False]),
        _evaluation(trajectory, [True, True]),
    )
    assert "they overlap: no difference is shown." in page


def test_a_start_from_demonstrations_is_called_a_warm_start(settings, trajectory) -> None:
    one = _evaluation(trajectory, [True, False])
    assert "is the warm start" in _page(settings, one, one)
    given = settings.model_copy(update={"experiment": {**settings.experiment, "policy.path": "x"}})
    assert "is the warm start" not in _page(given, one, one)


def test_model_text_cannot_run_or_load_anything(settings, trajectory) -> None:
    evil = '<script>alert(1)</script><img src="http://evil/x">'
    page = _page(
        settings,
        _evaluation(trajectory, [True, False], evil),
        _evaluation(trajectory, [True, False], evil),
    )
    assert "<script>" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def test_the_page_needs_no_network_and_is_balanced(settings, trajectory) -> None:
    one = _evaluation(trajectory, [True, False])
    page = _page(settings, one, one)
    assert not re.search(r"(src|href)\s*=|url\(|@import|https?://", page)
    checker = _Balanced()
    checker.feed(page)
    assert checker.open == []


def test_equal_inputs_give_equal_bytes(settings, trajectory) -> None:
    one = _evaluation(trajectory, [True, False])
    assert _page(settings, one, one) == _page(settings, one, one)


def test_a_stopped_run_says_why(settings, trajectory) -> None:
    one = _evaluation(trajectory, [True, False])
    stopped = settings.model_copy(update={"reason": "5 updates had nothing to learn from"})
    assert "5 updates had nothing to learn from" in _page(stopped, one, one)


class _Balanced(HTMLParser):
    """Collects the elements that were opened and not closed."""

    VOID = frozenset({"meta", "br", "img", "line", "circle", "polygon", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag
