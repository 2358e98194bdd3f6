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


def test_a_collected_object_is_gone_but_known_with_its_maker(store: Store) -> None:
    path, reference = _put(store)
    store.collect(reference, made_by="address")
    assert not path.exists()
    assert store.maker(reference) == "address"
    assert store.is_collected(reference)
    assert store.is_known(reference)
    assert not store.is_intact(reference)
    store.collect(reference, made_by="another")  # not there: nothing to do
    assert store.maker(reference) == "address"


def test_an_object_that_came_back_is_not_collected(store: Store) -> None:
    _, reference = _put(store)
    store.collect(reference, made_by="address")
    _put(store)
    assert not store.is_collected(reference)
    assert store.is_intact(reference)


def test_a_lost_object_is_not_known(store: Store) -> None:
    path, reference = _put(store)
    path.unlink()
    assert not store.is_known(reference)
    assert store.maker(reference) is None


def test_what_several_processes_need_is_made_by_one(store: Store) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tasks.store import Store\n"
        "store = Store(Path(sys.argv[1])); log = Path(sys.argv[2])\n"
        "with store.making('ab' * 32):\n"
        "    with log.open('a') as file: file.write('in '); file.flush(); time.sleep(0.2)\n"
        "    with log.open('a') as file: file.write('out ')\n"
    )
    log = store.root.parent / "log"
    command = [sys.executable, "-c", code, str(store.root), str(log)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert log.read_text() == "in out " * 3


def test_storing_what_another_process_stored_meanwhile_is_no_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(store, b"same")
    folder = store.root / "objects"
    monkeypatch.setattr(Store, "is_intact", _intact_from_the_second_call())
    with store.workspace() as scratch:
        (scratch / "policy").mkdir()
        (scratch / "policy" / "a").write_text("x")
        reference = store.put(scratch / "policy")
        (scratch / "policy").mkdir()
        (scratch / "policy" / "a").write_text("x")
        again = store.put(scratch / "policy")
    assert reference == again
    assert len(list(folder.rglob("a"))) == 1


def _intact_from_the_second_call() -> "object":
    """As it looks to a process that is a moment behind another one."""
    real, calls = Store.is_intact, []

    def is_intact(self: Store, reference: "object") -> bool:
        calls.append(reference)
        return len(calls) % 2 == 0 and real(self, reference)

    return is_intact
