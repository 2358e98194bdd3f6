"""The nightly suite: three environments by two presets, measured piece by piece in one process.

Every figure is one for which larger is worse. Times are processor time over that of a fixed piece
of work done beside it, so a busy or slower machine moves them little.
"""

import multiprocessing
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from flows.experiment import Experiment, load_experiment
from tasks.advantage import AdvantageJobSettings, advantage
from tasks.calibration import calibrate
from tasks.diagnose import DiagnoseJobSettings, diagnose
from tasks.filter import filter_stage
from tasks.lanes import Lanes
from tasks.rollout import RolloutJobSettings, rollout
from tasks.stage import Record, Runtime
from tasks.store import Reference, Store
from tasks.update import UpdateJobSettings, update
from tasks.warmstart import WarmstartJobSettings, warmstart

ENVIRONMENTS = ("Bandit", "ShortSokoban", "FrozenLake")
PRESETS = ("grpo", "starpo")
REPEATS = 4
"""Of each measurement; the first one warms up and is left out."""
SIZE: dict[str, Any] = {
    "warmstart.episodes": 1600,
    "rollout.groups": 8,
    "rollout.group_size": 8,
    "rollout.lanes": 1,
    "warmstart.lanes": 1,
}


class Figures(BaseModel):
    """What a night measures.

    Attributes:
        sampling: Processor time per sampled token, relative to the fixed work.
        learning: The same of filter, advantage and update, per token learned from.
        memory_mb: Most resident memory of the process.
        shard_bytes: Of a trajectory shard, per episode.
        log_prob_gap: Largest gap between the log-probs of sampler and trainer.
    """

    model_config = ConfigDict(frozen=True)

    sampling: float
    learning: float
    memory_mb: float
    shard_bytes: float
    log_prob_gap: float


class Cell(BaseModel):
    """One environment with one preset."""

    model_config = ConfigDict(frozen=True)

    sampling: float
    learning: float
    shard_bytes: float
    log_prob_gap: float


def measure(folder: Path) -> Figures:
    """Runs the suite in a process of its own.

    Args:
        folder: Keeps the policies that the suite starts from, between nights.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_measure_here, folder).result()


def _measure_here(folder: Path) -> Figures:
    cells = [
        _cell(load_experiment({**SIZE, "env.tag": tag, "preset": preset}), folder)
        for tag in ENVIRONMENTS
        for preset in PRESETS
    ]
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Figures(
        memory_mb=peak_kb / 1024,
        **{
            name: statistics.geometric_mean(getattr(cell, name) for cell in cells)
            for name in Cell.model_fields
        },
    )


def _cell(experiment: Experiment, folder: Path) -> Cell:
    with Lanes(workers=1) as lanes:
        runtime = Runtime(store=Store(folder), lanes=lanes)
        policy = _first_policy(experiment, runtime)
        sampling: list[float] = []
        learning: list[float] = []
        for _ in range(REPEATS):
            before_s = calibrate()
            started = time.process_time()
            played = _sample(experiment, runtime, policy)
            sampled = time.process_time()
            tokens = _learn(experiment, runtime, policy, played)
            learned = time.process_time()
            work_s = (before_s + calibrate()) / 2
            sampling.append((sampled - started) / work_s / played.metrics["rollout/sampled_tokens"])
            learning.append((learned - sampled) / work_s / tokens)
        shard = played.outputs["trajectories"]
        diagnosis = diagnose.make(
            runtime,
            settings=DiagnoseJobSettings(diagnose=experiment.diagnose, lanes=1),
            inputs={"policy": policy, "trajectories": shard},
            seed=0,
            label="diagnose",
        )
    return Cell(
        sampling=statistics.median(sampling[1:]),
        learning=statistics.median(learning[1:]),
        shard_bytes=shard.num_bytes / played.metrics["rollout/episodes"],
        log_prob_gap=diagnosis.metrics["diagnose/log_prob_gap_max"],
    )


def _first_policy(experiment: Experiment, runtime: Runtime) -> Reference:
    """The warm start, made on the first night and after a change of its code."""
    settings = WarmstartJobSettings(
        environment=experiment.env, nano=experiment.policy.nano, warmstart=experiment.warmstart
    )
    store = runtime.store
    address = warmstart.address(settings=settings, inputs={}, seed=0)
    known = store.read_record(address)
    record = Record.model_validate(known) if known else None
    if record is None or not store.is_intact(record.outputs["policy"]):
        record = warmstart.make(runtime, settings=settings, inputs={}, seed=0, label="warmstart")
        store.write_record(address, record.model_dump(mode="json"))
    return record.outputs["policy"]


def _sample(experiment: Experiment, runtime: Runtime, policy: Reference) -> Record:
    settings = RolloutJobSettings(
        environment=experiment.env, rollout=experiment.rollout, iteration=0
    )
    return rollout.make(
        runtime, settings=settings, inputs={"policy": policy}, seed=0, label="rollout"
    )


def _learn(experiment: Experiment, runtime: Runtime, policy: Reference, played: Record) -> float:
    """Filter, advantage and update.

    Returns:
        Sampled tokens that the update had.
    """
    trajectories = played.outputs["trajectories"]
    groups = filter_stage.make(
        runtime,
        settings=experiment.filter,
        inputs={"trajectories": trajectories},
        seed=0,
        label="filter",
    ).outputs["groups"]
    advantages = advantage.make(
        runtime,
        settings=AdvantageJobSettings(advantage=experiment.advantage, lanes=1),
        inputs={"policy": policy, "trajectories": trajectories, "groups": groups},
        seed=0,
        label="advantage",
    ).outputs["advantages"]
    loss = experiment.update.loss
    update.make(
        runtime,
        settings=UpdateJobSettings(
            update=experiment.update,
            sampling=experiment.rollout.sampling,
            with_critic=experiment.advantage.needs_critic,
            iteration=0,
            lanes=1,
        ),
        inputs={
            "policy": policy,
            "trajectories": trajectories,
            "advantages": advantages,
            **({"reference": policy} if loss.kl_in_loss else {}),
        },
        seed=0,
        label="update",
    )
    return played.metrics["rollout/sampled_tokens"]
