"""What an iteration learns from: rollout and filter, repeated until enough groups are kept."""

from dataclasses import dataclass

from flows.experiment import Experiment
from tasks.filter import filter_stage
from tasks.refill import RefillJobSettings, refill
from tasks.rollout import RolloutJobSettings, rollout
from tasks.stage import Record, Runtime
from tasks.store import Reference


@dataclass(frozen=True)
class Sampled:
    """Groups to learn from.

    Attributes:
        records: Of the stages whose metrics are the iteration's.
        trajectories: The trajectories behind the groups.
        groups: Which groups are kept.
    """

    records: list[Record]
    trajectories: Reference
    groups: Reference


def sample(
    experiment: Experiment, runtime: Runtime, *, policy: Reference, iteration: int
) -> Sampled:
    """Plays and filters, again with `filter.refills` until enough groups are kept.

    Args:
        experiment: What is run.
        runtime: Store and lanes.
        policy: Plays the episodes.
        iteration: Counted from 0.
    """
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
                inputs={"policy": policy},
                seed=experiment.seed,
                label=f"rollout {number}",
            )
        )
        chosen.append(
            filter_stage(
                runtime,
                settings=experiment.filter,
                inputs={"trajectories": played[-1].outputs["trajectories"]},
                seed=experiment.seed,
                label=f"filter {number}",
            )
        )
        kept += int(chosen[-1].metrics["filter/kept"])
        if kept >= experiment.rollout.groups:
            break
    first = [played[0], chosen[0]]
    if len(played) == 1:
        return Sampled(first, played[0].outputs["trajectories"], chosen[0].outputs["groups"])
    inputs = {}
    for index, (rows, groups) in enumerate(zip(played, chosen, strict=True)):
        inputs[f"trajectories_{index}"] = rows.outputs["trajectories"]
        inputs[f"groups_{index}"] = groups.outputs["groups"]
    joined = refill(
        runtime,
        settings=RefillJobSettings(num_groups=experiment.rollout.groups, rounds=len(played)),
        inputs=inputs,
        seed=experiment.seed,
        label=f"refill {iteration:04d}",
    )
    # further rounds only add to what is learned from; their metrics are not the iteration's
    return Sampled([*first, joined], joined.outputs["trajectories"], joined.outputs["groups"])
