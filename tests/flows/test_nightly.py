"""The nightly benchmark: a real night, its history, a planted slowdown."""

from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

import flows.nightly
from flows.nightly import Night, Verdict, history, judged, nightly, remember
from flows.nightly_suite import Figures

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def first(server: str) -> Night:
    """A real night, the first of this home."""
    del server
    return run(date="2026-01-01")


def run(**parameters: Any) -> Night:
    state: Any = nightly(**parameters, return_state=True)
    return Night.model_validate(state.result(raise_on_failure=False))


def figures_of(night: Night, **factors: float) -> Figures:
    values = {row.name: row.value * factors.get(row.name, 1.0) for row in night.rows}
    return Figures(**values)


def test_a_night_measures_every_figure_and_is_remembered(first: Night) -> None:
    assert first.verdict is Verdict.TOO_FEW
    assert {row.name for row in first.rows} == set(Figures.model_fields)
    assert all(row.value > 0 for row in first.rows)
    assert [night.name for night in history()] == ["2026-01-01"]


def test_a_date_that_is_done_is_skipped(first: Night) -> None:
    state: Any = nightly(date=first.date, return_state=True)
    assert state.name == "Skipped"
    assert state.message == Verdict.DONE
    assert [night.name for night in history()] == ["2026-01-01"]


def test_a_slowdown_fails_the_run_and_says_what_moved_until_it_is_accepted(
    first: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(2, 15):
        jitter = 1 + 0.002 * (-1) ** day
        figures = figures_of(first, sampling=jitter, learning=jitter)
        remember(judged(f"2026-01-{day:02d}", figures, []), figures, is_accepted=False)
    slow = figures_of(first, learning=1.2)
    monkeypatch.setattr(flows.nightly, "measure", lambda folder: slow)
    state: Any = nightly(date="2026-01-15", return_state=True)
    assert state.is_failed()
    assert state.message == "worse than before: learning"
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["nightly"]))
        )
    artifact = max(found, key=lambda artifact: artifact.created)
    assert "| learning |" in str(artifact.data)
    assert "**worse**" in str(artifact.data)
    accepted = run(date="2026-01-15", accept=True)
    assert accepted.verdict is Verdict.TOO_FEW
    assert run(date="2026-01-16").num_history == 1


def test_a_night_waits_for_nobody(first: Night, tmp_path: Any) -> None:
    from flows.defaults import STORE
    from tasks.store import Store

    del first
    with Store(STORE).writer(purpose="training"):
        assert run(date="2026-02-01").verdict is Verdict.BUSY
