"""One experiment: a warm start, then rounds of rollout, filter, advantage and update.

Running it again resumes it: stages whose outputs are stored are reused, the first one without
outputs runs, and the final policy is the same, bit for bit, as that of an uninterrupted run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from flows.experiment import Experiment
from tasks.advantage import AdvantageJobSettings, advantage
from tasks.diagnose import DiagnoseJobSettings, diagnose
from tasks.evaluate import EvaluateJobSettings, evaluate
from tasks.filter import filter_stage
from tasks.policy import adopt_policy
from tasks.report import ReportSettings, report
from tasks.rollout import RolloutJobSettings, rollout
from tasks.stage import Record, Runtime
from tasks.store import Reference
from tasks.update import UpdateJobSettings, update
from tasks.warmstart import WarmstartJobSettings, warmstart

MAX_CUT_SHARE = 0.2


class Ending(StrEnum):
    """Why training ended."""

    FINISHED = "finished"
    """All iterations ran."""
    STOPPED = "stopped"
    """A stop rule ended it; `Outcome.reason` says which."""


@dataclass
class Outcome:
    """What an experiment gave.

    Attributes:
        evaluations: Record of each evaluation by iteration.
        history: Metrics of each iteration by iteration.
        first: The policy that training started from.
        policy: The last policy.
        report: The report page.
    """

    first: Reference
    policy: Reference
    evaluations: dict[int, Record] = field(default_factory=dict)
    history: dict[int, dict[str, float]] = field(default_factory=dict)
    trajectories: dict[int, Reference] = field(default_factory=dict)
    ending: Ending = Ending.FINISHED
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    report: Reference | None = None


def first_warnings(metrics: dict[str, float]) -> list[str]:
    """What a person should know after the first iteration (C1, T7)."""
    warnings = []
    if not metrics["rollout/template_stable"]:
        warnings.append(
            "the policy's chat template rewrites earlier turns; turns are appended as ids instead, "
            "so what was sampled stays as it is"
        )
    cut = metrics["rollout/replies_cut"]
    if cut > MAX_CUT_SHARE:
        warnings.append(
            f"{cut:.0%} of the first replies were cut at the token limit before their stop token; "
            "raise `rollout.max_reply_tokens`"
        )
    return warnings


Observer = Callable[[int, dict[str, float]], None]


class Training:
    """One experiment on one runtime.

    Args:
        experiment: What to run.
        runtime: Store and lanes.
        observe: Called after each iteration with its metrics, in order.
    """

    def __init__(self, experiment: Experiment, runtime: Runtime, *, observe: Observer) -> None:
        self.experiment, self.runtime, self.observe = experiment, runtime, observe

    def run(self) -> Outcome:
        """Trains to the end, or to a stop rule."""
        settings = self.experiment.train
        first = self._first_policy()
        outcome = Outcome(first=first, policy=first)
        skipped = 0
        for iteration in range(settings.iterations):
            metrics: dict[str, float] = {}
            self.runtime.publish = iteration % settings.diagnose_every == 0
            if iteration % settings.evaluate_every == 0:
                metrics |= self._evaluate(outcome, iteration)
            metrics |= self._iterate(outcome, iteration)
            if iteration == 0:
                outcome.warnings += first_warnings(metrics)
            outcome.history[iteration] = metrics
            self.observe(iteration, metrics)
            skipped = skipped + 1 if metrics["update/steps"] == 0 else 0
            if skipped == settings.stop_after_skipped:
                outcome.ending = Ending.STOPPED
                outcome.reason = f"{skipped} updates in a row had nothing to learn from"
                break
        self.runtime.publish = True
        last = len(outcome.history)
        outcome.history[last] = self._evaluate(outcome, last)
        self.observe(last, outcome.history[last])
        outcome.report = self._report(outcome)
        return outcome

    def _first_policy(self) -> Reference:
        experiment = self.experiment
        if experiment.policy.path is not None:
            return adopt_policy(Path(experiment.policy.path), store=self.runtime.store)
        record = warmstart(
            self.runtime,
            settings=WarmstartJobSettings(
                environment=experiment.env,
                nano=experiment.policy.nano,
                warmstart=experiment.warmstart,
            ),
            inputs={},
            seed=experiment.warmstart.seed,
            label="warmstart",
        )
        return record.outputs["policy"]

    def _iterate(self, outcome: Outcome, iteration: int) -> dict[str, float]:
        experiment, runtime, seed = self.experiment, self.runtime, self.experiment.seed
        number = f"{iteration:04d}"
        played = rollout(
            runtime,
            settings=RolloutJobSettings(
                environment=experiment.env, rollout=experiment.rollout, iteration=iteration
            ),
            inputs={"policy": outcome.policy},
            seed=seed,
            label=f"rollout {number}",
        )
        trajectories = played.outputs["trajectories"]
        chosen = filter_stage(
            runtime,
            settings=experiment.filter,
            inputs={"trajectories": trajectories},
            seed=seed,
            label=f"filter {number}",
        )
        estimated = advantage(
            runtime,
            settings=AdvantageJobSettings(
                advantage=experiment.advantage, lanes=experiment.rollout.lanes
            ),
            inputs={
                "policy": outcome.policy,
                "trajectories": trajectories,
                "groups": chosen.outputs["groups"],
            },
            seed=seed,
            label=f"advantage {number}",
        )
        records = [played, chosen, estimated]
        if iteration % experiment.train.diagnose_every == 0:
            records.append(
                diagnose(
                    runtime,
                    settings=DiagnoseJobSettings(
                        diagnose=experiment.diagnose, lanes=experiment.rollout.lanes
                    ),
                    inputs={
                        "policy": outcome.policy,
                        "trajectories": trajectories,
                        "advantages": estimated.outputs["advantages"],
                    },
                    seed=seed,
                    label=f"diagnose {number}",
                )
            )
        updated = update(
            runtime,
            settings=UpdateJobSettings(
                update=experiment.update,
                sampling=experiment.rollout.sampling,
                with_critic=experiment.advantage.needs_critic,
                iteration=iteration,
                lanes=experiment.rollout.lanes,
            ),
            inputs={
                "policy": outcome.policy,
                "trajectories": trajectories,
                "advantages": estimated.outputs["advantages"],
                **self._reference(outcome),
            },
            seed=seed,
            label=f"update {number}",
        )
        records.append(updated)
        outcome.trajectories[iteration] = trajectories
        outcome.policy = updated.outputs["policy"]
        return {name: value for record in records for name, value in record.metrics.items()}

    def _reference(self, outcome: Outcome) -> dict[str, Reference]:
        """The first policy as the reference of a KL term, where the loss has one."""
        return {"reference": outcome.first} if self.experiment.update.loss.kl_coefficient else {}

    def _evaluate(self, outcome: Outcome, iteration: int) -> dict[str, float]:
        experiment = self.experiment
        record = evaluate(
            self.runtime,
            settings=EvaluateJobSettings(
                environment=experiment.env,
                evaluate=experiment.evaluate,
                max_reply_tokens=experiment.rollout.max_reply_tokens,
                lanes=experiment.rollout.lanes,
                iteration=iteration,
            ),
            inputs={"policy": outcome.policy},
            seed=experiment.evaluate.seed,
            label=f"evaluate {iteration:04d}",
        )
        outcome.evaluations[iteration] = record
        return record.metrics

    def _report(self, outcome: Outcome) -> Reference:
        experiment, evaluations = self.experiment, outcome.evaluations
        first, last = min(evaluations), max(evaluations)
        record = report(
            self.runtime,
            settings=ReportSettings(
                name=experiment.name,
                experiment=experiment.flat(),
                history=outcome.history,
                ending=outcome.ending.value,
                reason=outcome.reason,
            ),
            inputs={
                "before": evaluations[first].outputs["trajectories"],
                "after": evaluations[last].outputs["trajectories"],
                "policy": outcome.policy,
            },
            seed=experiment.seed,
            label="report",
        )
        return record.outputs["report"]
