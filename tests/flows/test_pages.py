"""A sweep submitted to the worker of `starpo up`, and what a browser then finds."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import Page, browser, chromium

from flows.defaults import ROOT
from flows.processes import processes_of
from flows.server import services_url
from flows.sweep import sweep_names
from flows.sweep_result import load_result
from tasks.store import Store
from tasks.tracking import open_client

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed"),
]
BIN = Path(sys.executable).parent
PATIENCE_S = 300.0


@dataclass
class Studio:
    """A home with its services running.

    Attributes:
        prefect: Address of the API.
        mlflow: Address of the page.
    """

    home: Path
    environment: dict[str, str]
    prefect: str
    mlflow: str

    def submit(self, deployment: str, **parameters: str) -> str:
        """Runs a deployment as README says.

        Returns:
            Id of the flow run.
        """
        words = [f"{name}={value}" for name, value in parameters.items()]
        command = [str(BIN / "prefect"), "deployment", "run", deployment]
        for word in words:
            command += ["--param", word]
        done = subprocess.run(
            command,
            env={**self.environment, "PREFECT_API_URL": self.prefect},
            check=True,
            capture_output=True,
            text=True,
        )
        (line,) = (line for line in done.stdout.splitlines() if "UUID" in line)
        return line.split()[-1]

    def state(self, run: str) -> dict[str, Any]:
        """State of a flow run."""
        found = httpx.get(f"{self.prefect}/flow_runs/{run}").raise_for_status().json()
        return dict(found["state"])

    def await_end(self, run: str) -> dict[str, Any]:
        """Waits for a flow run's last state."""
        deadline = time.monotonic() + PATIENCE_S
        while (state := self.state(run))["type"] in {"SCHEDULED", "PENDING", "RUNNING"}:
            assert time.monotonic() < deadline, state
            time.sleep(0.5)  # the next look
        return state


@pytest.fixture(scope="module")
def studio(
    tmp_path_factory: pytest.TempPathFactory, environment_of: Callable[[Path], dict[str, str]]
) -> Iterator[Studio]:
    home = tmp_path_factory.mktemp("studio")
    environment = environment_of(home)
    process = subprocess.Popen(
        [sys.executable, "-c", "from flows.cli import main; main()", "up"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + PATIENCE_S
    try:
        while services_url(home) is None:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)  # the next look
        addresses = json.loads((home / ".starpo" / "services.json").read_text())
        yield Studio(home, environment, addresses["prefect"], addresses["mlflow"])
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def swept(studio: Studio) -> Studio:
    """The studio after a sweep by its worker."""
    state = studio.await_end(studio.submit("starpo/sweep", sweep="smoke"))
    assert state["type"] == "COMPLETED", state
    return studio


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_prefects_page_has_the_deployments_and_the_nightly_schedule(
    swept: Studio, page: Page
) -> None:
    page.open(f"{swept.prefect.removesuffix('/api')}/deployments")
    page.await_text("4 Deployments", "train", "sweep", "evaluate", "nightly", "At 03:30 AM")


def test_prefects_page_has_the_finished_runs(swept: Studio, page: Page) -> None:
    page.open(f"{swept.prefect.removesuffix('/api')}/runs")
    arms = [f"smoke {arm} seed {seed}" for arm in ("two", "none") for seed in range(2)]
    page.await_text("5 runs", "sweep smoke", *arms)
    assert page.text().count("Completed") >= len(arms) + 1


def test_the_form_of_a_sweep_offers_what_may_be_chosen(swept: Studio, page: Page) -> None:
    found = httpx.get(f"{swept.prefect}/deployments/name/starpo/sweep").json()
    address = swept.prefect.removesuffix("/api")
    page.open(f"{address}/deployments/deployment/{found['id']}/run")
    page.await_text("Validate parameters", *sweep_names(), "nano", "paper", "processes", "ray")


def test_a_value_that_may_not_be_chosen_is_refused(studio: Studio) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        studio.submit("starpo/sweep", sweep="smoky")
    assert "smoky" in refused.value.stderr + refused.value.stdout


def test_mlflows_page_has_the_sweep_and_its_nested_runs(swept: Studio, page: Page) -> None:
    experiment = open_client(swept.home).get_experiment_by_name("sweep smoke")
    page.open(f"{swept.mlflow}/#/experiments/{experiment.experiment_id}/runs")
    page.await_text("smoke (nano)", "5 matching runs")
    assert "two seed 0" not in page.text()
    page.click("button[data-component-id*=runnamecellrenderer]")
    page.await_text("two seed 0", "two seed 1", "none seed 0", "none seed 1")


def test_the_report_page_has_the_verdict_and_no_console_errors(swept: Studio, page: Page) -> None:
    result = load_result(swept.home / "results", "smoke")
    page.open((swept.home / "results" / "smoke.html").as_uri())
    page.await_text(result.hypothesis, result.verdict.capitalize(), "starpo sweep smoke --seeds 2")
    assert page.errors == []


def test_a_training_runs_report_has_no_console_errors(swept: Studio, page: Page) -> None:
    store = swept.home / ".starpo" / "store"
    (report, *_) = sorted((store / "objects").rglob("*.html"))
    page.open(report.as_uri())
    page.await_text("held-out")
    assert page.errors == []


def test_cancelling_a_sweep_from_the_page_stops_its_work_within_ten_seconds(
    studio: Studio, page: Page, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    scratch = store.root / "tmp"
    services = set(processes_of(studio.home))
    run = studio.submit("starpo/sweep", sweep="smoke", place="processes", store=str(store.root))
    deadline = time.monotonic() + PATIENCE_S
    while not (scratch.exists() and any(scratch.iterdir())):  # an arm is at work
        assert time.monotonic() < deadline, studio.state(run)
        time.sleep(0.05)  # the next look
    page.open(f"{studio.prefect.removesuffix('/api')}/runs/flow-run/{run}")
    page.click_text("Cancel")
    workers = set(processes_of(studio.home)) - services
    page.click_text("Confirm")
    started = time.monotonic()
    while working := workers & set(processes_of(studio.home)):
        assert time.monotonic() - started < 10, working
        time.sleep(0.1)  # the next look
    while studio.state(run)["type"] == "CANCELLING":
        assert time.monotonic() - started < 30, "the server never hears of it"
        time.sleep(0.1)  # the next look
    assert studio.state(run)["type"] == "CANCELLED"
    again = studio.submit("starpo/sweep", sweep="smoke", store=str(store.root))
    assert studio.await_end(again)["type"] == "COMPLETED"
    assert not any(scratch.iterdir())
