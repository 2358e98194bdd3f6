"""`starpo explain`: what a figure, table, checkpoint or shard was made from, and what is left."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.table import Table

from flows.checkpoints import find_checkpoint, is_same_policy
from flows.errors import ExperimentError
from flows.sweep_report import command_of, rendered
from flows.sweep_result import SweepResult, load_result, result_path
from tasks.digest import digest_path
from tasks.lineage import FileState, Link, chain, file_state
from tasks.pages import flatten
from tasks.rebuild import makers, record_at
from tasks.runs import read_run
from tasks.stage import Record
from tasks.store import Reference, Store


class Kind(StrEnum):
    """What sort of file it is."""

    STORED = "stored"
    """An output of a stage: a shard, a policy, a run's report."""
    CHECKPOINT = "checkpoint"
    """A final policy of a sweep, copied for DVC."""
    RESULT = "result"
    """A sweep's table, page or figure."""


class Explanation(BaseModel):
    """A file and the chain behind it; JSON-ready.

    Attributes:
        state: Of the file itself.
        facts: Command or stage, settings, commit, packages, machine.
        chain: The stages, those needed first at the front.
        problems: Files of the chain that were changed or are missing, and changed code.
    """

    model_config = ConfigDict(frozen=True)

    file: str
    kind: Kind
    state: FileState
    facts: dict[str, Any]
    chain: list[Link]
    problems: list[str]


def explain(path: Path, *, root: Path, store: Store) -> Explanation:
    """Traces a file to its commit.

    Args:
        path: The file or folder; one that is gone is found by its name in the store.
        root: Holds `results` and `checkpoints`.
        store: Where its stages ran.

    Raises:
        ExperimentError: Nobody knows who made it.
    """
    path = path.absolute()
    if path.parent == root / "results" and result_path(path.parent, sweep_of(path)).exists():
        return _explain_result(path, root=root, store=store)
    if path.is_relative_to(root / "checkpoints"):
        return _explain_checkpoint(path, root=root, store=store)
    return _explain_stored(path, store=store)


def sweep_of(path: Path) -> str:
    """Name of the sweep that a file in `results` belongs to."""
    return path.name.partition(".")[0]


def find_record(path: Path, *, store: Store) -> tuple[Record, Reference]:
    """The record that made a stored file or a copy of one, and the output that it is.

    Raises:
        ExperimentError: None did.
    """
    named = path.name.partition(".")[0]
    known = makers(store)
    digest = named if named in known else digest_path(path) if path.exists() else named
    if digest not in known:
        raise ExperimentError(
            f"no stage of the store `{store.root}` made `{path}`\n"
            "hint: give a file of the store, a copy of one, a checkpoint or a sweep's result"
        )
    record = known[digest]
    return record, next(item for item in record.outputs.values() if item.digest == digest)


def _explain_stored(path: Path, *, store: Store) -> Explanation:
    record, reference = find_record(path, store=store)
    is_copy = path.exists() and store.path(reference) != path
    links = chain(record, store=store, known=makers(store))
    return Explanation(
        file=str(path),
        kind=Kind.STORED,
        state=FileState.WHOLE if is_copy else file_state(store, reference),
        facts={
            "stage": record.label,
            "address": record.address,
            "seed": record.seed,
            "settings": record.settings,
            "inputs": {name: item.name for name, item in record.inputs.items()},
            **record.provenance,
        },
        chain=links,
        problems=list(_problems(links)),
    )


def _explain_checkpoint(path: Path, *, root: Path, store: Store) -> Explanation:
    place = find_checkpoint(path, root=root)
    result = load_result(root / "results", place.sweep)
    link = result.runs[place.arm][place.seed]
    reference = Reference(digest=link.policy)
    policy = store.path(reference)
    record, _ = find_record(policy, store=store)
    links = chain(record, store=store, known=makers(store))
    state = FileState.MISSING
    if place.folder.exists():
        same = not store.is_intact(reference) or is_same_policy(place.folder, policy)
        state = FileState.WHOLE if same else FileState.CHANGED
    facts = {"command": command_of(result), "arm": place.arm, "seed": place.seed, "run": link.run}
    return Explanation(
        file=str(place.folder),
        kind=Kind.CHECKPOINT,
        state=state,
        facts={**facts, "policy": link.policy, **record.provenance},
        chain=links,
        problems=list(_problems(links)),
    )


def _explain_result(path: Path, *, root: Path, store: Store) -> Explanation:
    name = sweep_of(path)
    result = load_result(root / "results", name)
    links, problems = _run_links(result, root=root, store=store)
    table = result_path(root / "results", name)
    if result_state(table, root=root) is FileState.CHANGED:
        problems.insert(0, f"{table}: not as dvc.lock has it")
    state = result_state(path, root=root)
    facts = {"command": command_of(result), "verdict": result.verdict.value}
    return Explanation(
        file=str(path),
        kind=Kind.RESULT,
        state=state,
        facts={**facts, **result.provenance},
        chain=links,
        problems=[*problems, *_problems(links)],
    )


def result_state(path: Path, *, root: Path) -> FileState:
    """Whether a result is what its sweep's table says, or what DVC noted."""
    if not path.exists():
        return FileState.MISSING
    text = rendered(load_result(path.parent, sweep_of(path))).get(path.suffix)
    if text is not None:
        return FileState.WHOLE if path.read_text() == text else FileState.CHANGED
    noted = _noted_by_dvc(root).get(str(path.relative_to(root)))
    found = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    return FileState.CHANGED if noted not in {None, found} else FileState.WHOLE


def _noted_by_dvc(root: Path) -> dict[str, str]:
    """MD5 of every output in dvc.lock, by path."""
    lock = root / "dvc.lock"
    stages = (yaml.safe_load(lock.read_text()) or {}).get("stages", {}) if lock.exists() else {}
    return {item["path"]: item["md5"] for stage in stages.values() for item in stage["outs"]}


def _run_links(result: SweepResult, *, root: Path, store: Store) -> tuple[list[Link], list[str]]:
    """Every stage of the result's runs once, and the runs that this checkout does not have."""
    addresses: dict[str, None] = {}
    problems = []
    for arm, runs in result.runs.items():
        for seed, link in runs.items():
            run = read_run(root, link.run)
            if run is None:
                problems.append(f"{arm}, seed {seed}: its run {link.run[:12]} is not in this store")
                continue
            addresses |= dict.fromkeys(address for _, address in run.stages)
    known = makers(store)
    links: dict[str, Link] = {}
    for address in addresses:
        if store.read_record(address) is None:
            problems.append(f"the record {address[:12]} is missing")
        elif address not in links:
            record = record_at(store, address)
            links |= {
                link.address: link
                for link in chain(record, store=store, known=known, done=frozenset(links))
            }
    return list(links.values()), problems


def _problems(links: list[Link]) -> Iterator[str]:
    for link in links:
        for file in link.outputs:
            if file.state in {FileState.CHANGED, FileState.MISSING}:
                yield f"{link.label}: `{file.path}` is {file.state}"
    changed = [link.label for link in links if not link.same_code]
    if changed:
        yield f"the code of {len(changed)} stages has changed since, e.g. of `{changed[0]}`"


def print_explanation(found: Explanation, *, console: Console) -> None:
    """Prints the facts, the chain by stage, and the problems."""
    console.print(f"[bold]{found.file}[/bold]  {found.kind}, {found.state}", soft_wrap=True)
    facts = Table(show_header=False, box=None)
    for name, value in flatten_in_order(found.facts):
        facts.add_row(name, str(value))
    console.print(facts)
    table = Table(title=f"{len(found.chain)} stages behind it", title_justify="left")
    for column in ("stage", "runs", *FileState, "same code"):
        table.add_column(column)
    stages: dict[str, list[Link]] = {}
    for link in found.chain:
        stages.setdefault(link.label.split()[0], []).append(link)
    for name, links in stages.items():
        states = Counter(file.state for link in links for file in link.outputs)
        same = sum(link.same_code for link in links)
        counts = [str(states[state]) for state in FileState]
        table.add_row(name, str(len(links)), *counts, f"{same} of {len(links)}")
    console.print(table)
    for problem in found.problems:
        console.print(f"[yellow]warning:[/yellow] {problem}", soft_wrap=True)
    if not found.problems:
        console.print("every file of the chain is whole, or was collected and can be made again")


def flatten_in_order(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """Facts in their order, nested ones by dotted name."""
    pairs: list[tuple[str, Any]] = []
    for name, value in facts.items():
        pairs += flatten(value, f"{name} ") if isinstance(value, dict) else [(name, value)]
    return pairs
