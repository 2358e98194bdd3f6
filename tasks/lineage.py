"""Lineage: the stages behind a stored file, and whether each file of the chain is still whole."""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from tasks.errors import DamagedObjectError, MissingObjectError
from tasks.rebuild import has_same_code
from tasks.stage import Record
from tasks.store import Reference, Store


class FileState(StrEnum):
    """What became of a file."""

    WHOLE = "whole"
    COLLECTED = "collected"
    """Removed to save room; made again when something needs it."""
    CHANGED = "changed"
    MISSING = "missing"


class LinkedFile(BaseModel):
    """A stored file of the chain."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: str
    digest: str
    state: FileState


class Link(BaseModel):
    """One stage of the chain.

    Attributes:
        label: As people see it.
        address: Of the stage's run in the store.
        same_code: Whether the code here would run at the same address.
        outputs: Its files.
        inputs: Its inputs by name; their makers come before it in the chain.
    """

    model_config = ConfigDict(frozen=True)

    label: str
    address: str
    same_code: bool
    outputs: list[LinkedFile]
    inputs: dict[str, str]


def chain(
    record: Record,
    *,
    store: Store,
    known: Mapping[str, Record],
    done: Collection[str] = (),
) -> list[Link]:
    """The stage and all before it, those that were needed first at the front.

    Args:
        record: Of the stage.
        store: Where it ran.
        known: The makers of the store's objects.
        done: Addresses of stages to leave out, with all before them.
    """
    return [_link(item, store) for item in _in_order(record, known, set(done))]


def file_state(store: Store, reference: Reference) -> FileState:
    """What became of a stored object."""
    try:
        store.verified(reference)
    except DamagedObjectError:
        return FileState.CHANGED
    except MissingObjectError:
        return FileState.COLLECTED if store.is_collected(reference) else FileState.MISSING
    return FileState.WHOLE


def _in_order(record: Record, known: Mapping[str, Record], done: set[str]) -> Iterator[Record]:
    """Depth first without recursion: a chain has as many levels as a run has updates."""
    waiting: list[tuple[Record, bool]] = [(record, False)]
    while waiting:
        current, is_ready = waiting.pop()
        if current.address in done:
            continue
        if is_ready:
            done.add(current.address)
            yield current
            continue
        waiting.append((current, True))
        waiting += [
            (known[item.digest], False)
            for item in current.inputs.values()
            if item.digest in known and known[item.digest].address not in done
        ]


def _link(record: Record, store: Store) -> Link:
    return Link(
        label=record.label,
        address=record.address,
        same_code=has_same_code(record),
        outputs=[
            LinkedFile(
                name=name,
                path=str(store.path(item)),
                digest=item.digest,
                state=file_state(store, item),
            )
            for name, item in record.outputs.items()
        ],
        inputs={name: item.digest for name, item in record.inputs.items()},
    )
