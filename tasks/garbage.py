"""What a store holds that nothing refers to, and its removal."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from tasks.rebuild import all_records
from tasks.store import Store


@dataclass(frozen=True)
class Garbage:
    """Files of a store that nothing refers to.

    Attributes:
        records: Records of stages.
        objects: Files and folders.
        notes: Notes about collected objects.
        num_bytes: Of the objects.
    """

    records: list[Path] = field(default_factory=list)
    objects: list[Path] = field(default_factory=list)
    notes: list[Path] = field(default_factory=list)
    num_bytes: int = 0


def find_garbage(store: Store, *, addresses: Collection[str], digests: Collection[str]) -> Garbage:
    """Everything but the stages at these addresses with their files, and these objects.

    Args:
        store: The store.
        addresses: Of stages that are referred to.
        digests: Of objects that are referred to.
    """
    kept, records = set(digests), []
    for record in all_records(store):
        if record.address in addresses:
            kept |= {item.digest for item in (*record.inputs.values(), *record.outputs.values())}
        else:
            records.append(store.record_path(record.address))
    objects = [path for path in _files(store, "objects") if _digest(path) not in kept]
    notes = [path for path in _files(store, "collected") if _digest(path) not in kept]
    return Garbage(records, objects, notes, sum(_size(path) for path in objects))


def remove(store: Store, garbage: Garbage) -> None:
    """Removes it: records first, so that no record is left that names a removed file."""
    for path in (*garbage.records, *garbage.notes):
        path.unlink()
    with store.workspace() as folder:
        for number, path in enumerate(garbage.objects):
            path.rename(folder / str(number))


def _files(store: Store, kind: str) -> list[Path]:
    return sorted((store.root / kind).glob("*/*"))


def _digest(path: Path) -> str:
    return path.name.partition(".")[0]


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
