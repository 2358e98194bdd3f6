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
from flows.sampling import sample
from flows.stop import stop_reason
from models.settings import KLTerm, LossSettings
from tasks.advantage import AdvantageJobSettings, advantage
from tasks.diagnose import DiagnoseJobSettings, diagnose
from tasks.evaluate import EvaluateJobSettings, evaluate
from tasks.policy import adopt_policy
from tasks.report import ReportSettings, report
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


class Keep(StrEnum):
    """Which policies between the first and the last stay in the store."""

    ALL = "all"
    """Each one; `starpo gc` can remove them later."""
    EVALUATED = "evaluated"
    """Those that were evaluated; the others can be made again from the shards."""
    ENDS = "ends"
    """None."""


@dataclass
class Outcome:
    """What an experiment gave.

    Attributes:
        evaluations: Record of each evaluation by iteration.
        history: Metrics of each iteration by iteration.
        first: The policy that training started from.
        policy: The last policy.
        policies: The policy that each iteration made, with its stage's address.
        report: The report page.
    """

    first: Reference
    policy: Reference
    evaluations: dict[int, Record] = field(default_factory=dict)
    history: dict[int, dict[str, float]] = field(default_factory=dict)
    policies: list[tuple[str, Reference]] = field(default_factory=list)
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
        keep: Which policies stay in the store; changes no result.
    """

    def __init__(
        self,
        experiment: Experiment,
        runtime: Runtime,
        *,
        observe: Observer,
        keep: Keep = Keep.ALL,
    ) -> None:
        self.experiment, self.runtime = experiment, runtime
        self.observe, self.keep = observe, keep

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
            self._collect(outcome, iteration - 1)
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
        sampled = sample(experiment, runtime, policy=outcome.policy, iteration=iteration)
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
                "trajectories": sampled.trajectories,
                "groups": sampled.groups,
                **({"reference": outcome.first} if loss.kl_in_reward else {}),
            },
            seed=seed,
            label=f"advantage {number}",
        )
        records = [*sampled.records, estimated]
        if iteration % experiment.train.diagnose_every == 0:
            records.append(
                diagnose(
                    runtime,
                    settings=DiagnoseJobSettings(
                        diagnose=experiment.diagnose, lanes=experiment.rollout.lanes
                    ),
                    inputs={
                        "policy": outcome.policy,
                        "trajectories": sampled.trajectories,
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
                "trajectories": sampled.trajectories,
                "advantages": estimated.outputs["advantages"],
                **({"reference": outcome.first} if loss.kl_in_loss else {}),
            },
            seed=seed,
            label=f"update {number}",
        )
        records.append(updated)
        outcome.policy = updated.outputs["policy"]
        outcome.policies.append((updated.address, outcome.policy))
        metrics = {name: value for record in records for name, value in record.metrics.items()}
        if loss.kl_coefficient:
            metrics["update/kl_coefficient"] = loss.kl_coefficient
        return metrics

    def _collect(self, outcome: Outcome, iteration: int) -> None:
        """Removes the policy that an iteration made, once the next iteration is done with it."""
        kept = self.keep is Keep.ALL or (
            self.keep is Keep.EVALUATED and iteration + 1 in outcome.evaluations
        )
        if not kept and iteration >= 0:
            address, policy = outcome.policies[iteration]
            self.runtime.store.collect(policy, made_by=address)

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
