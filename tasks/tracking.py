"""Tracking: one MLflow run per experiment, in SQLite and files below `mlruns/`.

The only file that imports MLflow. A run is found again by the experiment's digest, so a resumed
experiment continues its run and logs no step twice; a run that a killed process left RUNNING is
closed at the next start.
"""

import contextlib
import fcntl
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient
from pydantic import BaseModel, ConfigDict

PROGRESS_METRIC = "train/iteration"
MAX_BATCH = 900
SEND_AFTER = 200
MAX_PARAM_CHARACTERS = 500
MAX_PAGE = 1000
UNSAFE = re.compile(r"[^\w\-. /:]", re.ASCII)
REFERRING = ("digest", "policy", "run")


class RunState(StrEnum):
    """States of an MLflow run, in MLflow's words."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class Tracker:
    """The MLflow run of one experiment; use as a context manager.

    A body that raises leaves the run FAILED, one that is interrupted leaves it KILLED.
    """

    def __init__(self, client: MlflowClient, run_id: str, *, last_iteration: int) -> None:
        self._client, self.run_id = client, run_id
        self._last_iteration = last_iteration
        self._waiting: list[Metric] = []
        self._ended = False

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        experiment: str,
        run_key: str,
        name: str,
        parameters: Mapping[str, object],
        tags: Mapping[str, str] | None = None,
    ) -> "Tracker":
        """Starts or continues the run of an experiment.

        Args:
            root: Folder that holds `mlruns/`.
            experiment: MLflow experiment that the run belongs to.
            run_key: Stable identity of the run: the experiment's digest.
            name: Shown in the interface.
            parameters: Flat settings.
            tags: Further tags.
        """
        client = open_client(root)
        experiment_id = _experiment_id(client, experiment, root)
        close_abandoned(client, experiment_id)
        marks = {"starpo.digest": run_key, "starpo.process": this_process(), **(tags or {})}
        found = client.search_runs([experiment_id], f"tags.`starpo.digest` = '{run_key}'")
        # marked before it is RUNNING: another command closes what runs without a living process
        if found:
            run = found[0]
            client.log_batch(run.info.run_id, tags=[RunTag(*mark) for mark in marks.items()])
            client.update_run(run.info.run_id, status=RunState.RUNNING.value)
        else:
            run = client.create_run(experiment_id, run_name=name, tags=marks)
            values = [
                Param(key, str(value)[:MAX_PARAM_CHARACTERS]) for key, value in parameters.items()
            ]
            client.log_batch(run.info.run_id, params=values)
        run_id: str = run.info.run_id
        last = int(run.data.metrics.get(PROGRESS_METRIC, -1))
        return cls(client, run_id, last_iteration=last)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Logs an iteration's metrics; an iteration that is there is left alone.

        Several iterations are sent together, so a killed process loses the last few here; the
        resumed one sends them again from the stored stages.
        """
        if iteration <= self._last_iteration:
            return
        now = _milliseconds()
        self._waiting += [
            Metric(_safe(key), value, now, iteration) for key, value in metrics.items()
        ]
        self._waiting.append(Metric(PROGRESS_METRIC, iteration, now, iteration))
        self._last_iteration = iteration
        if len(self._waiting) > SEND_AFTER:
            self.send()

    def send(self) -> None:
        """Sends what waits."""
        for start in range(0, len(self._waiting), MAX_BATCH):
            self._client.log_batch(self.run_id, metrics=self._waiting[start : start + MAX_BATCH])
        self._waiting = []

    def log_artifact(self, path: Path, *, name: str) -> None:
        """Copies a text file to the run's artifacts under a readable name."""
        self._client.log_text(self.run_id, path.read_text(), name)

    def log_nested(
        self,
        *,
        key: str,
        name: str,
        parameters: Mapping[str, object],
        metrics: Mapping[str, float],
        curve: Mapping[int, float],
        curve_name: str,
        links: Mapping[str, str],
    ) -> None:
        """Logs a finished run nested under this one; one that is there already is replaced.

        Args:
            key: Stable identity below this run.
            name: Shown in the interface.
            parameters: What distinguishes it.
            metrics: Final numbers.
            curve: Values by iteration.
            curve_name: What the curve is of.
            links: Tags.
        """
        client = self._client
        (experiment_id,) = {client.get_run(self.run_id).info.experiment_id}
        marks = {"mlflow.parentRunId": self.run_id, "starpo.nested": key}
        earlier = client.search_runs(
            [experiment_id],
            f"tags.`mlflow.parentRunId` = '{self.run_id}' and tags.`starpo.nested` = '{key}'",
        )
        for run in earlier:
            client.delete_run(run.info.run_id)
        tags = {**marks, **{f"starpo.{name}": value for name, value in links.items()}}
        run_id = client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
        now = _milliseconds()
        client.log_batch(
            run_id,
            params=[
                Param(item, str(value)[:MAX_PARAM_CHARACTERS]) for item, value in parameters.items()
            ],
            metrics=[
                *(Metric(curve_name, value, now, step) for step, value in curve.items()),
                *(Metric(_safe(item), value, now, 0) for item, value in metrics.items()),
            ][:MAX_BATCH],
        )
        client.set_terminated(run_id, status=RunState.FINISHED.value)

    def log_links(self, links: Mapping[str, str]) -> None:
        """Tags the run with digests or paths of what it produced."""
        tags = [RunTag(f"starpo.{key}", value) for key, value in links.items()]
        self._client.log_batch(self.run_id, tags=tags)

    def finish(self, ending: str, reason: str = "") -> None:
        """Ends the run; `ending` and `reason` become tags."""
        self.log_links({"ending": ending, "reason": reason or "none"})
        self._end(RunState.FINISHED)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ended:
            return
        if kind is None or issubclass(kind, Exception):
            self._end(RunState.FAILED)
        else:
            self._end(RunState.KILLED)

    def _end(self, state: RunState) -> None:
        self.send()
        self._client.set_terminated(self.run_id, status=state.value)
        self._ended = True


def open_client(root: Path) -> MlflowClient:
    """A client of the store below `root`; creates the database once, whoever comes first."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    folder = root.absolute() / "mlruns"
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder / ".lock"):
        client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        client.search_experiments(max_results=1)
    return client


def close_abandoned(client: MlflowClient, experiment_id: str) -> list[str]:
    """Sets runs to KILLED whose process is gone; returns their ids."""
    closed = []
    for run in client.search_runs([experiment_id], "attributes.status = 'RUNNING'"):
        process = run.data.tags.get("starpo.process", "")
        if not _is_alive(process):
            client.set_terminated(run.info.run_id, status=RunState.KILLED.value)
            closed.append(run.info.run_id)
    return closed


def this_process() -> str:
    """Host, process id and start time: names this process among all that ever had its id."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_time(os.getpid())}"


def _is_alive(process: str) -> bool:
    """Whether a process named by `this_process` runs; one of another host counts as running."""
    host, _, rest = process.partition(":")
    if host != socket.gethostname():
        return bool(process)
    identifier, _, started = rest.partition(":")
    return _start_time(int(identifier)) == started


def _start_time(process: int) -> str:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    return "gone" if fields[0] == "Z" else fields[19]


def _experiment_id(client: MlflowClient, name: str, root: Path) -> str:
    with _exclusive(root.absolute() / "mlruns" / ".lock"):
        found = client.get_experiment_by_name(name)
        if found is not None:
            identifier: str = found.experiment_id
            return identifier
        location = (root.absolute() / "mlruns" / "artifacts" / name).as_uri()
        created: str = client.create_experiment(name, artifact_location=location)
        return created


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _safe(name: str) -> str:
    """A name of a metric as MLflow allows it: of letters, digits and `_-. /:`."""
    return UNSAFE.sub("_", name.replace("@", "_at_").replace("%", "percent"))


def _milliseconds() -> int:
    return int(time.time() * 1000)


def tracked_digests(root: Path) -> set[str]:
    """Digests that MLflow's runs refer to, of experiments and policies; not of deleted runs."""
    if not (root / "mlruns" / "mlflow.db").exists():
        return set()
    client = open_client(root)
    experiments = [item.experiment_id for item in client.search_experiments()]
    found: set[str] = set()
    token = None
    while True:
        page = client.search_runs(experiments, max_results=MAX_PAGE, page_token=token)
        for run in page:
            found |= {run.data.tags.get(f"starpo.{name}", "") for name in REFERRING}
        token = page.token
        if not token:
            return found - {""}


class FinishedRun(BaseModel):
    """A finished run's tags and last metrics."""

    model_config = ConfigDict(frozen=True)

    name: str
    tags: dict[str, str]
    metrics: dict[str, float]


def finished_runs(root: Path, experiment: str) -> list[FinishedRun]:
    """The finished runs of an experiment by name; none when it does not exist.

    Args:
        root: Holds `mlruns`.
        experiment: Its name.
    """
    if not (root / "mlruns" / "mlflow.db").exists():
        return []
    client = open_client(root)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return []
    finished = f"attributes.status = '{RunState.FINISHED.value}'"
    runs = client.search_runs([found.experiment_id], finished, max_results=MAX_PAGE)
    return sorted(
        (
            FinishedRun(
                name=run.info.run_name,
                tags={
                    name.removeprefix("starpo."): value
                    for name, value in run.data.tags.items()
                    if name.startswith("starpo.")
                },
                metrics=run.data.metrics,
            )
            for run in runs
        ),
        key=lambda run: run.name,
    )


class TrackedRun(BaseModel):
    """A run as MLflow knows it, for lists."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    name: str
    experiment: str
    state: str
    iterations: int
    success: float | None
    ending: str


def tracked_runs(root: Path) -> list[TrackedRun]:
    """All runs below `root`, newest first; none when nothing was tracked yet."""
    if not (root / "mlruns" / "mlflow.db").exists():
        return []
    client = open_client(root)
    names = {item.experiment_id: item.name for item in client.search_experiments()}
    runs = client.search_runs(list(names), order_by=["attributes.start_time DESC"])
    return [
        TrackedRun(
            run_id=run.info.run_id,
            name=run.info.run_name,
            experiment=names[run.info.experiment_id],
            state=run.info.status,
            iterations=int(run.data.metrics.get(PROGRESS_METRIC, 0)),
            success=run.data.metrics.get("evaluate/success"),
            ending=run.data.tags.get("starpo.ending", ""),
        )
        for run in runs
    ]
