"""Content-addressed store: files and folders by their digest, stage records by address.

Layout below the store's root:

- `objects/ab/abcd….parquet`, `objects/ab/abcd…/`: immutable, named by their digest;
- `records/ab/abcd….json`: what a stage produced, written last, so a record implies whole outputs;
- `collected/ab/abcd….parquet`: instead of an object that was removed to save room: the address of
  the stage that makes it again;
- `tmp/<pid>-…/`: work in progress; what a dead process left is removed by the next writer;
- `lock`: held by the one command that writes; its own processes share the store, and `locks/ab`
  lets one of them make what several need.

Everything appears by rename after fsync, so a kill at any byte leaves either the whole thing or
nothing (acceptance P3).
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.digest import digest_path
from tasks.errors import DamagedObjectError, MissingObjectError, StoreBusyError, StoreFullError


class Reference(BaseModel):
    """A stored file or folder: what stages pass to each other instead of data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    suffix: str = ""
    num_bytes: int = 0

    @property
    def name(self) -> str:
        """File name in the store."""
        return self.digest + self.suffix


class Contents(BaseModel):
    """How much a store holds."""

    model_config = ConfigDict(frozen=True)

    num_objects: int
    num_records: int
    num_bytes: int


class Store:
    """A local store below `root`; created on first use.

    Args:
        root: Folder of the store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._verified: dict[Path, tuple[int, ...]] = {}

    # --- objects ---------------------------------------------------------------------------------

    def path(self, reference: Reference) -> Path:
        """Where the object lies (not verified)."""
        return self.root / "objects" / reference.digest[:2] / reference.name

    def put(self, path: Path) -> Reference:
        """Moves a file or folder (made in `workspace`) into the store; atomic and durable."""
        digest, suffix = digest_path(path), "" if path.is_dir() else path.suffix
        files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
        num_bytes = sum(file.stat().st_size for file in files)
        reference = Reference(digest=digest, suffix=suffix, num_bytes=num_bytes)
        target = self.path(reference)
        if self.is_intact(reference):
            return reference
        with _disk_errors(self.root):
            target.parent.mkdir(parents=True, exist_ok=True)
            for file in files:
                if file.stat().st_nlink == 1:  # a link to a stored file is durable already
                    _fsync(file)
            if target.exists():  # damaged: never mend in place
                self._discard(target)
            try:
                path.rename(target)
            except OSError:
                if not self.is_intact(reference):  # else a process beside this one stored the same
                    raise
            _fsync(target.parent)
        self._verified[target] = _signature(target)
        return reference

    def verified(self, reference: Reference) -> Path:
        """The object's path, after checking that its bytes have the reference's digest.

        Raises:
            MissingObjectError: The object is not in the store.
            DamagedObjectError: Its bytes were changed or cut.
        """
        path = self.path(reference)
        if not path.exists():
            raise MissingObjectError(
                f"`{path}` is not in the store\n"
                "hint: run the command again: the stage that makes it will run"
            )
        signature = _signature(path)
        if self._verified.get(path) == signature:
            return path
        found = digest_path(path)
        if found != reference.digest:
            raise DamagedObjectError(
                f"`{path}` was changed or cut: its digest is {found[:12]}…, "
                f"its name says {reference.digest[:12]}…\n"
                "hint: run the command again: the stage that makes it will run anew"
            )
        self._verified[path] = signature
        return path

    def is_intact(self, reference: Reference) -> bool:
        """Whether the object is there and whole."""
        try:
            self.verified(reference)
        except (MissingObjectError, DamagedObjectError):
            return False
        return True

    def collect(self, reference: Reference, *, made_by: str) -> None:
        """Removes an object to save room, and remembers how to make it again.

        Args:
            reference: The object; one that is not there is left alone.
            made_by: Address of the stage whose output it is.
        """
        path = self.path(reference)
        if not path.exists():
            return
        with _disk_errors(self.root):
            note = self._note(reference)
            note.parent.mkdir(parents=True, exist_ok=True)
            temporary = note.with_name(f"{note.name}.{os.getpid()}.tmp")
            temporary.write_text(made_by)
            _fsync(temporary)
            temporary.replace(note)
        self._discard(path)

    def maker(self, reference: Reference) -> str | None:
        """Address of the stage that makes a collected object again; None for any other object."""
        try:
            return self._note(reference).read_text()
        except FileNotFoundError:
            return None

    def is_collected(self, reference: Reference) -> bool:
        """Whether the object was removed to save room."""
        return not self.path(reference).exists() and self.maker(reference) is not None

    def is_known(self, reference: Reference) -> bool:
        """Whether the object is whole, or was collected and can be made again."""
        return self.is_intact(reference) or self.is_collected(reference)

    def _note(self, reference: Reference) -> Path:
        return self.root / "collected" / reference.digest[:2] / reference.name

    # --- records ---------------------------------------------------------------------------------

    def record_path(self, address: str) -> Path:
        """Where the record of a stage's address lies."""
        return self.root / "records" / address[:2] / f"{address}.json"

    def write_record(self, address: str, record: dict[str, Any]) -> None:
        """Writes a stage's record; the last step of a stage."""
        target = self.record_path(address)
        with _disk_errors(self.root):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
            _fsync(temporary)
            temporary.replace(target)
            _fsync(target.parent)

    def read_record(self, address: str) -> dict[str, Any] | None:
        """The record at an address, or None when that stage never finished."""
        path = self.record_path(address)
        try:
            record: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise DamagedObjectError(
                f"`{path}` is not a stage record: {error}\nhint: delete this file and run again"
            ) from error
        return record

    def contents(self) -> "Contents":
        """How much the store holds."""
        files = [path for path in (self.root / "objects").rglob("*") if path.is_file()]
        return Contents(
            num_objects=sum(1 for _ in (self.root / "objects").glob("*/*")),
            num_records=sum(1 for _ in (self.root / "records").glob("*/*.json")),
            num_bytes=sum(path.stat().st_size for path in files),
        )

    # --- writers ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A fresh scratch folder on the store's disk, removed at the end."""
        with _disk_errors(self.root):
            (self.root / "tmp").mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.root / "tmp"))
        try:
            with _disk_errors(self.root):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def writer(self, *, purpose: str) -> Iterator[None]:
        """Holds the store for writing; the lock ends with the process, however it dies.

        Raises:
            StoreBusyError: Another process holds it.
        """
        with _disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / "lock").open("a+")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise StoreBusyError(
                    f"the store `{self.root}` is in use by {holder}\n"
                    "hint: wait until it ends, or give this run a store of its own: "
                    "`--store OTHER_FOLDER`"
                ) from error
            file.truncate(0)
            file.write(f"process {os.getpid()} ({purpose})")
            file.flush()
            shutil.rmtree(self.root / "tmp", ignore_errors=True)  # left by a killed writer
            yield

    @contextlib.contextmanager
    def making(self, address: str) -> Iterator[None]:
        """Held by the one process that makes what belongs to an address; others wait for it.

        Addresses share 256 locks, so a process must not hold two of them.
        """
        with _disk_errors(self.root):
            (self.root / "locks").mkdir(parents=True, exist_ok=True)
            file = (self.root / "locks" / address[:2]).open("a")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def holder(self) -> str | None:
        """Who holds the store for writing; None when nobody does."""
        try:
            with (self.root / "lock").open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read().strip() or "another process"
        except FileNotFoundError:
            pass
        return None

    def _discard(self, path: Path) -> None:
        with self.workspace() as folder:
            path.rename(folder / "discarded")


def _signature(path: Path) -> tuple[int, ...]:
    """What changes when an object is touched: size and modification time of each of its files."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [file.stat() for file in files]
    return tuple(value for stat in stats for value in (stat.st_ino, stat.st_size, stat.st_mtime_ns))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT} or isinstance(error, StoreFullError):
            raise
        raise StoreFullError(
            error.errno,
            f"no room left on the disk of the store `{root}`; all that was stored before is whole\n"
            "hint: free some space and run the same command: it resumes where it stopped",
        ) from error
