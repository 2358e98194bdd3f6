import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.store import Store


def _starpo(*arguments: str, home: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = "from flows.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=home,
        check=False,
        timeout=300,
    )


def _refused(done: subprocess.CompletedProcess[str], *texts: str) -> None:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    for text in texts:
        assert text in done.stderr


@pytest.mark.parametrize(
    ("override", "texts"),
    [
        ("rollout.group=3", ("unknown setting `rollout.group`", "did you mean `rollout.groups`?")),
        ("env.tag=Socoban", ("unknown tag `Socoban`", "did you mean")),
        ("rollout.groups=many", ("`rollout.groups` = 'many'",)),
        ("rollout.group_size=1", ("compares the members of a group", "hint:")),
        ("filter.value=2", ("above 1", "hint:")),
    ],
)
def test_I9_a_bad_setting_stops_before_anything_starts(home, override: str, texts) -> None:
    _refused(_starpo("train", override, home=home), *texts)
    assert not Path(home["STARPO_HOME"], ".starpo", "store").exists()


def test_a_cut_shard_is_refused_by_name(home, tmp_path: Path) -> None:
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and then nothing")
    _refused(_starpo("show", str(tmp_path / "cut.parquet"), home=home), "cut.parquet", "hint:")


def test_status_of_a_fresh_checkout(home) -> None:
    done = _starpo("status", "--json", home=home)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs"] == []
    assert found["num_records"] == 0


def test_doctor_finds_this_environment_healthy(home) -> None:
    done = _starpo("doctor", "--json", home=home)
    findings = {item["name"]: item for item in json.loads(done.stdout)}
    assert findings["store"]["state"] == "ok"
    assert all(item["state"] == "ok" or item["mend"] for item in findings.values())


@pytest.mark.parametrize("command", ["train", "evaluate", "show", "status", "doctor", "up"])
def test_every_command_has_help_with_an_example(home, command: str) -> None:
    done = _starpo(command, "--help", home=home)
    assert done.returncode == 0
    assert "Example: starpo" in done.stdout


@pytest.mark.server
def test_a_missing_policy_folder_is_refused(home) -> None:
    _refused(_starpo("evaluate", "/nowhere", home=home), "`/nowhere` is not a folder", "hint:")


@pytest.mark.server
def test_two_runs_at_once_on_one_store(home) -> None:
    store = Store(Path(home["STARPO_HOME"]) / ".starpo" / "store")
    with store.writer(purpose="the first run"):
        done = _starpo("train", "train.iterations=1", home=home)
    _refused(done, "is in use by process", "(the first run)", "--store")
