"""One experiment: a warm start, then rounds of rollout, filter, advantage and update.

Running it again resumes it: stages whose outputs are stored are reused, the first one without
outputs runs, and the final policy is the same, bit for bit, as that of an uninterrupted run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from flows.adaptive_kl import kl_coefficient
from flows.experiment import Experiment
from flows.stop import stop_reason
from models.settings import KLTerm, LossSettings
from tasks.advantage import AdvantageJobSettings, advantage
from tasks.diagnose import DiagnoseJobSettings, diagnose
from tasks.evaluate import EvaluateJobSettings, evaluate
from tasks.filter import filter_stage
from tasks.policy import adopt_policy
from tasks.refill import RefillJobSettings, refill
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
            reason = stop_reason(list(outcome.history.values()), self.experiment.stop)
            if reason is not None:
                outcome.ending, outcome.reason = Ending.STOPPED, reason
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
        records = self._sample(outcome, iteration)
        trajectories = records[-1].outputs.get("trajectories", records[0].outputs["trajectories"])
        groups = records[-1].outputs["groups"]
        loss = self._loss(outcome)
        kl_in_reward = KLTerm(coefficient=loss.kl_coefficient, estimator=loss.kl_estimator)
        estimated = advantage(
            runtime,
            settings=AdvantageJobSettings(
                advantage=experiment.advantage,
                lanes=experiment.rollout.lanes,
                kl=kl_in_reward if loss.kl_in_reward else None,
                loss_scaling=experiment.filter.loss_scaling,
            ),
            inputs={
                "policy": outcome.policy,
                "trajectories": trajectories,
                "groups": groups,
                **({"reference": outcome.first} if loss.kl_in_reward else {}),
            },
            seed=seed,
            label=f"advantage {number}",
        )
        records.append(estimated)
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
                update=experiment.update.model_copy(update={"loss": loss}),
                sampling=experiment.rollout.sampling,
                with_critic=experiment.advantage.needs_critic,
                iteration=iteration,
                lanes=experiment.rollout.lanes,
            ),
            inputs={
                "policy": outcome.policy,
                "trajectories": trajectories,
                "advantages": estimated.outputs["advantages"],
                **({"reference": outcome.first} if loss.kl_in_loss else {}),
            },
            seed=seed,
            label=f"update {number}",
        )
        records.append(updated)
        outcome.trajectories[iteration] = trajectories
        outcome.policy = updated.outputs["policy"]
        metrics = {name: value for record in records for name, value in record.metrics.items()}
        if loss.kl_coefficient:
            metrics["update/kl_coefficient"] = loss.kl_coefficient
        return metrics

    def _sample(self, outcome: Outcome, iteration: int) -> list[Record]:
        """Rollout and filter, again with `filter.refills` until enough groups are kept.

        Returns:
            Records of the stages; the last one has the groups that the update learns from, and the
            trajectories behind them unless they are all in the first one's.
        """
        experiment, runtime, seed = self.experiment, self.runtime, self.experiment.seed
        played: list[Record] = []
        chosen: list[Record] = []
        kept = 0
        for round_ in range(experiment.filter.refills + 1):
            number = f"{iteration:04d}" + (f" round {round_}" if round_ else "")
            played.append(
                rollout(
                    runtime,
                    settings=RolloutJobSettings(
                        environment=experiment.env,
                        rollout=experiment.rollout,
                        iteration=iteration,
                        round=round_,
                    ),
                    inputs={"policy": outcome.policy},
                    seed=seed,
                    label=f"rollout {number}",
                )
            )
            chosen.append(
                filter_stage(
                    runtime,
                    settings=experiment.filter,
                    inputs={"trajectories": played[-1].outputs["trajectories"]},
                    seed=seed,
                    label=f"filter {number}",
                )
            )
            kept += int(chosen[-1].metrics["filter/kept"])
            if kept >= experiment.rollout.groups:
                break
        if len(played) == 1:
            return [*played, *chosen]
        inputs = {}
        for index, (rows, groups) in enumerate(zip(played, chosen, strict=True)):
            inputs[f"trajectories_{index}"] = rows.outputs["trajectories"]
            inputs[f"groups_{index}"] = groups.outputs["groups"]
        joined = refill(
            runtime,
            settings=RefillJobSettings(num_groups=experiment.rollout.groups, rounds=len(played)),
            inputs=inputs,
            seed=seed,
            label=f"refill {iteration:04d}",
        )
        return [played[0], chosen[0], joined]  # further rounds only add to what is learned from

    def _loss(self, outcome: Outcome) -> LossSettings:
        """The loss with the KL coefficient of this iteration."""
        loss = self.experiment.update.loss
        name = "update/reference_kl" if loss.kl_in_loss else "advantage/reference_kl"
        rows = outcome.history.values()
        coefficient = kl_coefficient(
            loss,
            [row[name] for row in rows if name in row],
            num_episodes=self.experiment.rollout.groups * self.experiment.rollout.group_size,
        )
        return loss.model_copy(update={"kl_coefficient": coefficient})

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
