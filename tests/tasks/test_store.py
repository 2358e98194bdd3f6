import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.errors import DamagedObjectError, MissingObjectError, StoreBusyError, StoreFullError
from tasks.store import Store, _disk_errors


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def _put(store: Store, content: bytes = b"hello") -> tuple[Path, "object"]:
    with store.workspace() as folder:
        (folder / "a.parquet").write_bytes(content)
        reference = store.put(folder / "a.parquet")
    return store.path(reference), reference


def test_equal_bytes_are_stored_once(store: Store) -> None:
    first, second = _put(store), _put(store)
    assert first == second
    assert len(list((store.root / "objects").rglob("*.parquet"))) == 1


def test_a_folder_is_named_by_its_names_and_bytes(store: Store) -> None:
    references = []
    for name in ("a", "b"):
        with store.workspace() as folder:
            (folder / "policy").mkdir()
            (folder / "policy" / name).write_text("same")
            references.append(store.put(folder / "policy"))
    assert references[0].digest != references[1].digest


def test_a_truncated_object_is_refused_by_name(store: Store) -> None:
    path, reference = _put(store)
    path.write_bytes(b"hell")
    with pytest.raises(DamagedObjectError, match=path.name):
        store.verified(reference)
    assert not store.is_intact(reference)


def test_an_edit_of_equal_length_is_noticed(store: Store) -> None:
    path, reference = _put(store)
    store.verified(reference)
    path.write_bytes(b"hellO")
    with pytest.raises(DamagedObjectError):
        Store(store.root).verified(reference)


def test_a_missing_object_is_refused(store: Store) -> None:
    path, reference = _put(store)
    path.unlink()
    with pytest.raises(MissingObjectError, match="hint"):
        store.verified(reference)


def test_a_damaged_object_is_replaced_by_a_whole_one(store: Store) -> None:
    path, reference = _put(store)
    path.write_bytes(b"bad")
    assert _put(store)[1] == reference
    assert path.read_bytes() == b"hello"


def test_P3_work_in_progress_is_never_an_object(store: Store) -> None:
    with pytest.raises(RuntimeError, match="killed"), store.workspace() as folder:
        (folder / "half.parquet").write_bytes(b"half")
        raise RuntimeError("killed")
    assert not (store.root / "objects").exists()
    assert not list((store.root / "tmp").iterdir())


@pytest.mark.parametrize("moment", ["before put", "before record"])
def test_P3_a_kill_leaves_whole_objects_or_none(store: Store, moment: str) -> None:
    program = f"""
import os, signal
from pathlib import Path
from tasks.store import Store
store = Store(Path({str(store.root)!r}))
with store.writer(purpose="test"), store.workspace() as folder:
    (folder / "a.parquet").write_bytes(b"hello")
    if {moment!r} == "before put":
        os.kill(os.getpid(), signal.SIGKILL)
    store.put(folder / "a.parquet")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -9
    assert store.read_record("ab" * 32) is None
    with store.writer(purpose="next"):
        assert not (store.root / "tmp").exists()
    path, reference = _put(store)
    assert store.verified(reference) == path


def test_a_second_writer_is_told_who_holds_the_store(store: Store) -> None:
    with (
        store.writer(purpose="starpo train"),
        pytest.raises(StoreBusyError, match=rf"process {os.getpid()} \(starpo train\)"),
        Store(store.root).writer(purpose="other"),
    ):
        pass
    with store.writer(purpose="afterwards"):
        pass


def test_a_full_disk_is_named_and_loses_nothing(store: Store) -> None:
    path, reference = _put(store)
    with pytest.raises(StoreFullError, match="no room left"), store.workspace():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert store.verified(reference) == path
    with pytest.raises(OSError, match="other"), _disk_errors(store.root):
        raise OSError(errno.EIO, "other")


def test_a_record_survives_a_new_process_and_is_refused_when_cut(store: Store) -> None:
    store.write_record("ab" * 32, {"metrics": {"a": 1.0}})
    assert Store(store.root).read_record("ab" * 32) == {"metrics": {"a": 1.0}}
    store.record_path("ab" * 32).write_text('{"metrics": ')
    with pytest.raises(DamagedObjectError, match="delete this file"):
        store.read_record("ab" * 32)
