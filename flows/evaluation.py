"""Evaluation of one policy folder: what it inherits, what was overridden, and its table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.errors import ExperimentError
from flows.experiment import Experiment, load_experiment
from tasks.evaluate import EvaluateJobSettings, evaluate
from tasks.policy import adopt_policy, policy_environment
from tasks.stage import Runtime


def evaluation_experiment(policy: Path, overrides: Mapping[str, Any]) -> Experiment:
    """The experiment whose environment and prompts a policy was trained with, plus overrides.

    Args:
        policy: Folder of a policy.
        overrides: Settings by dotted name; all of them are written into the result (E5).

    Raises:
        ExperimentError: A bad override, or one that changes `env.thinking` (T9).
    """
    environment = policy_environment(policy)
    inherited = {} if environment is None else {"env": environment.model_dump(mode="json")}
    if "env.tag" in overrides:
        inherited = {"env": {"thinking": environment.thinking}} if environment else {}
    experiment = load_experiment({**inherited, **overrides})
    if environment is not None and experiment.env.thinking != environment.thinking:
        raise ExperimentError(
            f"`{policy}` was trained with env.thinking={environment.thinking}, "
            f"asked is {experiment.env.thinking}\n"
            "hint: evaluate it as it was trained; train another policy to compare"
        )
    return experiment


def evaluate_policy(
    policy: Path, overrides: Mapping[str, Any], *, runtime: Runtime
) -> dict[str, Any]:
    """Plays held-out episodes.

    Args:
        policy: Folder of a policy.
        overrides: Settings by dotted name.
        runtime: Store and lanes.

    Returns:
        Metrics, the shard's path, the environment and the overrides; JSON-ready.
    """
    reference = adopt_policy(policy, store=runtime.store)
    experiment = evaluation_experiment(policy, overrides)
    record = evaluate(
        runtime,
        settings=EvaluateJobSettings(
            environment=experiment.env,
            evaluate=experiment.evaluate,
            max_reply_tokens=experiment.rollout.max_reply_tokens,
            lanes=experiment.rollout.lanes,
            iteration=0,
        ),
        inputs={"policy": reference},
        seed=experiment.evaluate.seed,
        label=f"evaluate {policy.name}",
    )
    return {
        "policy": str(policy),
        "policy_digest": reference.digest,
        "environment": experiment.env.model_dump(mode="json"),
        "overrides": dict(overrides),
        "num_executed": len(runtime.executed),
        "num_reused": len(runtime.reused),
        "metrics": record.metrics,
        "trajectories": str(runtime.store.path(record.outputs["trajectories"])),
    }


def print_evaluation(result: Mapping[str, Any], *, console: Console) -> None:
    """Prints the evaluation as a table."""
    metrics = result["metrics"]
    table = Table(
        title=f"{result['environment']['tag']}: {int(metrics['evaluate/episodes'])} held-out "
        "episodes, 95 % intervals",
        title_justify="left",
    )
    table.add_column("")
    table.add_column("success", justify="right")
    table.add_column("interval", justify="right")
    rows = [("all", "evaluate/success", "evaluate/success_low", "evaluate/success_high")]
    prefix, suffix = "evaluate/by/", "/success"
    for name in metrics:
        if name.startswith(prefix) and name.endswith(suffix):
            kind = name.removeprefix(prefix).removesuffix(suffix)
            rows.append((kind, name, f"{prefix}{kind}/low", f"{prefix}{kind}/high"))
    for label, rate, low, high in rows:
        table.add_row(label, f"{metrics[rate]:.3f}", f"[{metrics[low]:.3f}, {metrics[high]:.3f}]")
    console.print(table)
    if result["overrides"]:
        changes = ", ".join(f"{key}={value}" for key, value in result["overrides"].items())
        console.print(f"differs from the policy's training: {changes}")
    console.print(f"episodes  {result['trajectories']}", soft_wrap=True)
