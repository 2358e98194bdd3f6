"""A sweep in MLflow: one run with its verdict, and under it one nested run per arm and seed.

A training run may belong to several sweeps, so it keeps its own place under its tag; the nested run
has what the sweep compares and a link to it.
"""

from collections.abc import Mapping
from pathlib import Path

from flows.summary import Summary
from flows.sweep import Sweep
from flows.sweep_report import report_path
from flows.sweep_result import SweepResult
from tasks.digest import digest_json
from tasks.tracking import Tracker

CURVE = "evaluate/success"


def track_sweep(
    root: Path,
    sweep: Sweep,
    result: SweepResult,
    summaries: Mapping[str, Mapping[int, Summary]],
) -> None:
    """Logs a sweep that has ended; one that is there already is continued.

    Args:
        root: Holds `mlruns` and `results`.
        sweep: The sweep.
        result: What it found.
        summaries: Of its runs, by arm and seed.
    """
    definition = {"sweep": sweep.name, "scale": sweep.scale.value}
    with Tracker.open(
        root,
        experiment=f"sweep {sweep.name}",
        run_key=digest_json({**definition, **sweep.settings.model_dump(mode="json")}),
        name=f"{sweep.name} ({sweep.scale.value})",
        parameters={**definition, "reference": sweep.settings.reference, "metric": result.metric},
    ) as tracker:
        changes = {arm.name: arm.overrides for arm in sweep.arms}
        for arm, runs in summaries.items():
            for seed, summary in runs.items():
                tracker.log_nested(
                    key=f"{arm}/{seed}",
                    name=f"{arm} seed {seed}",
                    parameters={"arm": arm, "seed": seed, **changes[arm]},
                    metrics={result.metric: result.values[arm][seed]},
                    curve=summary.curve,
                    curve_name=CURVE,
                    links={"run": summary.digest, "policy": summary.policy_digest},
                )
        means = {f"mean/{row.arm}": row.mean for row in result.arms}
        tracker.log(0, means)
        tracker.log_artifact(report_path(root / "results", result.name), name="report.html")
        tracker.log_links({"verdict": result.verdict.value, "hypothesis": result.hypothesis})
        tracker.finish("finished")
