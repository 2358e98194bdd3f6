"""Makes stored files again: runs the stage that made one, and before it those of its inputs.

Every stage is a function of settings, inputs and seed, so what was removed to save room, lost or
damaged comes back bit for bit on the same kind of machine.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tasks.advantage import advantage
from tasks.diagnose import diagnose
from tasks.errors import RebuildError
from tasks.evaluate import evaluate
from tasks.filter import filter_stage
from tasks.provenance import provenance
from tasks.refill import refill
from tasks.report import report
from tasks.rollout import rollout
from tasks.stage import Record, Runtime, Stage
from tasks.store import Reference, Store
from tasks.update import update
from tasks.warmstart import warmstart

STAGES: dict[str, Stage[Any]] = {
    stage.name: stage
    for stage in (
        advantage,
        diagnose,
        evaluate,
        filter_stage,
        refill,
        report,
        rollout,
        update,
        warmstart,
    )
}


def restore(runtime: Runtime, reference: Reference) -> None:
    """Makes an object again that was collected; what had to be made for it is collected again.

    Raises:
        RebuildError: It was not collected, its stage's code has changed, or it comes out different.
    """
    address = runtime.store.maker(reference)
    if address is None:
        raise RebuildError(f"`{reference.name}` was not collected from the store")
    rebuild(runtime, record_at(runtime.store, address))


def rebuild(runtime: Runtime, record: Record) -> list[Record]:
    """Runs a stage again, and first those whose outputs it needs and the store lacks.

    Args:
        runtime: Its store gets the outputs; no record changes.
        record: Of the stage.

    Returns:
        Records of the stages that ran, in order.

    Raises:
        RebuildError: The code of a stage has changed, the store does not know who made an input, or
            an output comes out different.
    """
    store = runtime.store
    known: dict[str, Record] = {}
    waiting = [record]
    order: list[Record] = []  # the last is needed first; a stage may be needed by several
    while waiting:
        current = waiting.pop()
        order = [*(item for item in order if item.address != current.address), current]
        for reference in current.inputs.values():
            if not store.is_intact(reference):
                known = known or makers(store)
                if reference.digest not in known:
                    raise RebuildError(
                        f"nobody knows who made `{reference.name}`, an input of `{current.label}`\n"
                        "hint: run the experiment again"
                    )
                waiting.append(known[reference.digest])
    for item in reversed(order):
        _run_again(runtime, item)
    for item in order[1:]:
        for output in item.outputs.values():
            if store.maker(output) == item.address:
                store.collect(output, made_by=item.address)
    return order[::-1]


def _run_again(runtime: Runtime, record: Record) -> None:
    stage = STAGES[record.stage]
    settings = stage.settings_class.model_validate(record.settings)
    if not has_same_code(record):
        raise RebuildError(
            f"the code of `{record.label}` has changed since it ran\n"
            f"hint: check out commit {record.provenance.get('commit', 'unknown')} to rebuild it"
        )
    made = stage.make(  # a shard names where it came from, so the first origin is part of its bytes
        runtime,
        settings=settings,
        inputs=record.inputs,
        seed=record.seed,
        label=record.label,
        origin=record.provenance,
    )
    for name, output in record.outputs.items():
        if made.outputs[name].digest != output.digest:
            raise RebuildError(
                f"`{name}` of `{record.label}` comes out different: {made.outputs[name].digest} "
                f"instead of {output.digest}\nhint: it was made on {_machine(record.provenance)}; "
                f"here is {_machine(provenance())}"
            )


def has_same_code(record: Record) -> bool:
    """Whether the code here would run the stage at the same address."""
    stage = STAGES[record.stage]
    settings = stage.settings_class.model_validate(record.settings)
    return (
        stage.address(settings=settings, inputs=record.inputs, seed=record.seed) == record.address
    )


def makers(store: Store) -> dict[str, Record]:
    """The record that made each object, by the object's digest.

    Where versions of the code made the same bytes, that of the code here is preferred.
    """
    found: dict[str, Record] = {}
    for record in all_records(store):
        for output in record.outputs.values():
            other = found.get(output.digest)
            if other is None or (not has_same_code(other) and has_same_code(record)):
                found[output.digest] = record
    return found


def all_records(store: Store) -> Iterator[Record]:
    """Every record of a store."""
    for path in sorted((store.root / "records").glob("*/*.json")):
        yield record_at(store, path.stem)


def record_at(store: Store, address: str) -> Record:
    """The record at an address.

    Raises:
        RebuildError: There is none.
    """
    found = store.read_record(address)
    if found is None:
        raise RebuildError(f"the store has no record at {address}")
    return Record.model_validate(found)


def _machine(origin: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in origin["packages"].items())
    return f"{origin['machine']}, {packages}"
