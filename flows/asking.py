"""Questions to stored runs: `starpo filter`, `starpo advantage` and `starpo audit`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tasks.asking import (
    Asked,
    Settings,
    ask_advantage,
    ask_filter,
    load_asked,
    settings_grid,
    table_of,
)
from tasks.audit import Audit, audit_iteration, verified_paths
from tasks.diagnose import DiagnoseSettings
from tasks.errors import SettingsError
from tasks.estimates import AdvantageSettings
from tasks.filter_rules import FilterSettings
from tasks.runs import LAST, Run, find_run, records_of
from tasks.store import Store

Answers = dict[str, dict[str, float]]


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Shards or a run, and `key=value` settings; the last run when neither is named."""
    changes = [item for item in arguments if "=" in item]
    places = [item for item in arguments if "=" not in item]
    return places or [LAST], changes


def answer_filter(root: Path, store: Store, arguments: Sequence[str]) -> Answers:
    """What variants of the filter would have kept of stored rollouts.

    Args:
        root: Holds `.starpo`.
        store: Where the run's shards are.
        arguments: Shards or a run, and settings; a comma makes a grid.
    """
    return _answer(root, store, arguments, kind=FilterSettings, stage="filter", ask=ask_filter)


def answer_advantage(root: Path, store: Store, arguments: Sequence[str]) -> Answers:
    """What other estimators would have given to what a run learned from; see `answer_filter`."""
    kind = AdvantageSettings
    return _answer(root, store, arguments, kind=kind, stage="advantage", ask=ask_advantage)


def _answer(
    root: Path,
    store: Store,
    arguments: Sequence[str],
    *,
    kind: type[Settings],
    stage: str,
    ask: Callable[[Sequence[Asked], Settings], dict[str, float]],
) -> Answers:
    places, changes = split_arguments(arguments)
    asked, run = _asked(root, store, places)
    grid = settings_grid(kind.model_validate(_settings(run, stage)), changes, prefix=stage)
    return {name: ask(asked, settings) for name, settings in grid.items()}


def audit_run(root: Path, store: Store, name: str, *, max_gap: float | None) -> Audit:
    """Asks every question of the audit about every iteration of a run.

    Args:
        root: Holds `.starpo`.
        store: Where the run's shards are.
        name: The run.
        max_gap: Log-prob gap that is still rounding; the run's own limit when not given.
    """
    run = find_run(root, name)
    limit = max_gap or float(run.experiment.get("diagnose.max_gap", DiagnoseSettings().max_gap))
    audit = Audit()
    for label, shards in _iterations(run, store).items():
        audit_iteration(audit, shards, label=f"iteration {label}", max_gap=limit)
    return audit


def print_answers(answers: Answers, *, title: str, console: Console) -> None:
    """Prints one line per variant."""
    header, *lines = table_of(answers)
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for line in lines:
        table.add_row(*line)
    console.print(table)


def print_audit(audit: Audit, *, console: Console) -> None:
    """Prints the answers to each question."""
    title = f"{audit.iterations} iterations, {audit.tokens:,} tokens: every answer should be 0"
    table = Table("question", "rows", "first", title=title, title_justify="left")
    for question, finding in audit.findings.items():
        style = "red" if finding.num_rows else None
        table.add_row(question, str(finding.num_rows), finding.example, style=style)
    console.print(table)


def _settings(run: Run | None, stage: str) -> dict[str, object]:
    """The run's own settings of a stage."""
    flat: Mapping[str, object] = run.experiment if run is not None else {}
    prefix = f"{stage}."
    return {
        key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)
    }


def _asked(root: Path, store: Store, places: list[str]) -> tuple[list[Asked], Run | None]:
    files = [Path(place) for place in places if Path(place).is_file()]
    if len(files) == len(places):
        return [load_asked(path) for path in files], None
    if len(places) > 1:
        missing = next(place for place in places if not Path(place).is_file())
        raise SettingsError(f"`{missing}` is no file\nhint: name shards, or one run")
    run = find_run(root, places[0])
    return [
        load_asked(shards["trajectories"], shards["groups"], shards["advantages"])
        for shards in _iterations(run, store).values()
    ], run


def _iterations(run: Run, store: Store) -> dict[str, dict[str, Path]]:
    """Paths of each iteration's shards, by its number; what the update learned from wins."""
    found: dict[str, dict[str, Path]] = {}
    for record in records_of(run, store):
        kind, _, rest = record.label.partition(" ")
        if kind in {"rollout", "filter", "refill", "advantage", "diagnose"} and "round" not in rest:
            found.setdefault(rest, {}).update(verified_paths(store, record.outputs))
    return {label: shards for label, shards in found.items() if "advantages" in shards}
