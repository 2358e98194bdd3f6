import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.errors import ServerError
from flows.processes import Leashed

SLEEPER = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]


def _alive(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _children(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]


def _ends(process: int, patience_s: float = 15.0) -> bool:
    deadline = time.monotonic() + patience_s
    while _alive(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _alive(process)


def test_stop_ends_the_command_and_its_leash(tmp_path: Path) -> None:
    child = Leashed(SLEEPER, log=tmp_path / "log", environment={})
    child.wait_until(lambda: "here" in child.tail(), what="the sleeper")
    leash = child._process.pid
    (command,) = _children(leash)
    child.stop()
    assert not _alive(leash)
    assert not _alive(command)


def test_C6_a_killed_parent_leaves_no_command_behind(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
from pathlib import Path
from flows.processes import Leashed
child = Leashed({SLEEPER!r}, log=Path({str(tmp_path / "log")!r}), environment={{}})
child.wait_until(lambda: "here" in child.tail(), what="the sleeper")
print(child._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    leash = int(process.stdout.readline())
    commands = _children(leash) if _alive(leash) else []
    assert process.wait() == -signal.SIGKILL
    assert _ends(leash)
    assert all(_ends(command) for command in commands)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to the leash")
@pytest.mark.parametrize("habit", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_C6_a_killed_command_leaves_nothing_of_other_sessions_behind(
    tmp_path: Path, habit: str
) -> None:
    grandchild = f"import signal, time; {habit}; print('here', flush=True); time.sleep(600)"
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {grandchild!r}], start_new_session=True)
time.sleep(600)
"""
    child = Leashed([sys.executable, "-c", program], log=tmp_path / "log", environment={})
    child.wait_until(lambda: "here" in child.tail(), what="the grandchild")
    (command,) = _children(child._process.pid)
    (orphan,) = _children(command)
    os.kill(command, signal.SIGKILL)
    assert _ends(child._process.pid)
    assert not _alive(orphan)


def test_a_leash_told_to_end_ends_its_command_at_once(tmp_path: Path) -> None:
    child = Leashed(SLEEPER, log=tmp_path / "log", environment={})
    child.wait_until(lambda: "here" in child.tail(), what="the sleeper")
    (command,) = _children(child._process.pid)
    started = time.monotonic()
    os.kill(child._process.pid, signal.SIGTERM)
    assert _ends(child._process.pid)
    assert time.monotonic() - started < 3.0  # not the grace time of a stubborn command
    assert not _alive(command)


def test_a_command_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such port')"]
    child = Leashed(command, log=tmp_path / "log", environment={})
    with pytest.raises(ServerError, match="no such port"):
        child.wait_until(lambda: False, what="the server")


def test_the_environment_reaches_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['STARPO_TEST'])"]
    child = Leashed(command, log=tmp_path / "log", environment={"STARPO_TEST": "yes"})
    assert child._process.wait(20) == 0
    assert child.tail() == "yes"
    assert "STARPO_TEST" not in os.environ


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands orphans to the leash")
def test_C6_an_orphan_that_has_ended_does_not_keep_its_group_alive(tmp_path: Path) -> None:
    grandchild = "import time; print('here', flush=True); time.sleep(600)"
    child = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {grandchild!r}])
time.sleep(600)
"""
    program = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True).wait()
time.sleep(600)
"""
    command = Leashed([sys.executable, "-c", program], log=tmp_path / "log", environment={})
    command.wait_until(lambda: "here" in command.tail(), what="the grandchild")
    (own,) = _children(command._process.pid)
    (group,) = _children(own)
    os.killpg(group, signal.SIGTERM)
    deadline = time.monotonic() + 15
    while _group_exists(group):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert _alive(own)
    command.stop()


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
