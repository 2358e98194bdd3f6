"""Report: one self-contained page about a run, readable without a server and without a network."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict

from tasks.charts import Curve, Point, line_chart
from tasks.evaluate import evaluation_metrics
from tasks.pages import flatten, render
from tasks.shards import Kind, read_shard
from tasks.stage import Job, stage

Value = str | int | float | bool | list[str] | None

CHARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Success", "Held-out episodes with their interval, and training episodes.", ("success",)),
    ("Return", "Mean return of training episodes, penalties included.", ("rollout/return",)),
    (
        "Spread inside groups",
        "Mean standard deviation of returns inside a group: what there is to learn from.",
        ("rollout/group_return_std",),
    ),
    ("Groups kept", "Groups that the filter passed on to the update.", ("filter/kept",)),
    ("Entropy", "Mean entropy of the sampling distribution, nats per token.", ("update/entropy",)),
    ("Gradient norm", "Before scaling, mean over the steps.", ("update/gradient_norm",)),
    ("Clipped", "Share of tokens whose ratio left the clip range.", ("update/clipped",)),
    ("Valid turns", "Share of training turns without a penalty.", ("rollout/valid_turns",)),
    ("Reply length", "Sampled tokens per turn.", ("rollout/reply_tokens",)),
    ("Actions", "Actions per training episode.", ("rollout/actions",)),
    (
        "Advantage without success",
        "Share of the advantage in groups where no episode succeeded.",
        ("advantage/mass_without_success",),
    ),
    (
        "Sampler against trainer",
        "Largest gap between the log-probs of the two; rounding only.",
        ("diagnose/log_prob_gap_max",),
    ),
)


class ReportSettings(BaseModel):
    """What the page shows besides the shards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    experiment: dict[str, Value]
    history: dict[int, dict[str, float]]
    ending: str
    reason: str


@dataclass(frozen=True)
class Evaluation:
    """The held-out episodes of one policy and their metrics."""

    table: pa.Table
    metrics: Mapping[str, float]


def page_of(
    settings: ReportSettings,
    *,
    before: Evaluation,
    after: Evaluation,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that the template shows.

    Args:
        settings: Of the report.
        before: Evaluation of the policy that training started from.
        after: Evaluation of the last policy.
        provenance: Commit, packages and machine.
    """
    first, last = _interval(before.metrics, "evaluate"), _interval(after.metrics, "evaluate")
    apart = last[1] > first[2] or first[1] > last[2]
    return {
        "name": settings.name,
        "tag": settings.experiment["env.tag"],
        "seed": settings.experiment["seed"],
        "num_episodes": after.table.num_rows,
        "before": f"{first[0]:.2f}",
        "after": f"{last[0]:.2f}",
        "before_interval": f"{first[1]:.2f} to {first[2]:.2f}",
        "after_interval": f"{last[1]:.2f} to {last[2]:.2f}",
        "verdict": "they do not overlap." if apart else "they overlap: no difference is shown.",
        "warm_start": settings.experiment["policy.path"] is None,
        "ending": f"The run was stopped: {settings.reason}." if settings.reason else "",
        "rows": _rows(before.metrics, after.metrics),
        "charts": _charts(settings.history),
        "episodes": [
            episode
            for name, evaluation in (("Before", before), ("After", after))
            for episode in _samples(evaluation.table, name=name)
        ],
        "settings": sorted(settings.experiment.items()),
        "provenance": flatten(provenance),
    }


def _rows(before: Mapping[str, float], after: Mapping[str, float]) -> list[dict[str, str]]:
    suffix = "/success"
    kinds = sorted(
        name.removesuffix(suffix)
        for name in after
        if name.startswith("evaluate/by/") and name.endswith(suffix) and name in before
    )
    rows = []
    for prefix in ("evaluate", *kinds):
        first, last = _interval(before, prefix), _interval(after, prefix)
        rows.append(
            {
                "name": "all" if prefix == "evaluate" else prefix.removeprefix("evaluate/by/"),
                "episodes": f"{after[f'{prefix}/episodes']:.0f}",
                "before": f"{first[0]:.3f}",
                "before_interval": f"{first[1]:.3f} to {first[2]:.3f}",
                "after": f"{last[0]:.3f}",
                "after_interval": f"{last[1]:.3f} to {last[2]:.3f}",
            }
        )
    return rows


def _interval(metrics: Mapping[str, float], prefix: str) -> tuple[float, float, float]:
    """Success and its interval; the names differ between all episodes and a kind of them."""
    ends = ("success_low", "success_high") if prefix == "evaluate" else ("low", "high")
    return (
        metrics[f"{prefix}/success"],
        metrics[f"{prefix}/{ends[0]}"],
        metrics[f"{prefix}/{ends[1]}"],
    )


def _charts(history: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    charts = []
    for title, meaning, names in CHARTS:
        curves = [curve for name in names for curve in _curves(history, name)]
        if curves:
            svg = Markup(line_chart(curves, label=title))  # noqa: S704 - our own SVG, texts escaped
            legend = [(curve.name, curve.role) for curve in curves] if len(curves) > 1 else []
            charts.append({"title": title, "meaning": meaning, "svg": svg, "legend": legend})
    return charts


def _curves(history: Mapping[int, Mapping[str, float]], name: str) -> list[Curve]:
    if name == "success":
        return [
            *_curves(history, "rollout/success"),
            *_curves(history, "evaluate/success"),
        ]
    held_out = name == "evaluate/success"
    points = [
        Point(
            x=iteration,
            y=metrics[name],
            low=metrics.get(f"{name}_low"),
            high=metrics.get(f"{name}_high"),
        )
        for iteration, metrics in sorted(history.items())
        if name in metrics
    ]
    if not points:
        return []
    role = "second" if name == "rollout/success" else "main"
    label = {"rollout/success": "training", "evaluate/success": "held out"}.get(name, name)
    return [Curve(name=label, points=points, role=role, dots=held_out)]


def _samples(table: pa.Table, *, name: str) -> list[dict[str, Any]]:
    """The first success and the first failure of an evaluation."""
    won = table["success"].to_pylist()
    chosen = [won.index(outcome) for outcome in (True, False) if outcome in won]
    return [_episode(table.slice(row, 1).to_pylist()[0], name=name) for row in chosen]


def _episode(row: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    turns = zip(
        row["prompts"],
        row["replies"],
        row["actions"],
        row["rewards"],
        row["penalties"],
        row["stop_reasons"],
        strict=True,
    )
    return {
        "title": f"{name} training",
        "success": row["success"],
        "status": row["status"],
        "kind": row["stratum"],
        "total": f"{row['return'] + row['penalty']:+.2f}",
        "turns": [
            {
                "prompt": prompt,
                "reply": reply,
                "actions": ", ".join(actions),
                "reward": f"{reward:+.2f}",
                "penalty": f"{penalty:+.2f}" if penalty else "",
                "cut": reason == "length",
            }
            for prompt, reply, actions, reward, penalty, reason in turns
        ],
    }


@stage("report", version=1)
def report(job: Job[ReportSettings]) -> None:
    """Writes the page."""
    tables = {
        name: read_shard(job.inputs[name], kind=Kind.TRAJECTORIES).table
        for name in ("before", "after")
    }
    evaluations = {
        name: Evaluation(table, evaluation_metrics(table)) for name, table in tables.items()
    }
    page = page_of(
        job.settings,
        before=evaluations["before"],
        after=evaluations["after"],
        provenance={
            **job.description["provenance"],
            "policy": job.digests["policy"],
            "episodes before": job.digests["before"],
            "episodes after": job.digests["after"],
        },
    )
    job.output("report", suffix=".html").write_text(render("report.html", page))
