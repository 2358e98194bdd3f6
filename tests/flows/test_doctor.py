import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from flows import doctor
from flows.doctor import Finding, State, diagnose, findings_json, findings_table, healthy


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Finding]]:
    """Findings about packages for the text of a lock."""

    def find(text: str) -> list[Finding]:
        (tmp_path / "requirements.lock").write_text(text)
        monkeypatch.setattr(doctor, "ROOT", tmp_path)
        return doctor._packages()

    return find


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0+cpu", "numpy": "2.4.6"}
    monkeypatch.setattr(doctor, "_installed", versions.get)


@pytest.mark.usefixtures("installed")
def test_locked_packages_are_one_finding_whatever_their_build(
    locked: Callable[[str], list[Finding]],
) -> None:
    (finding,) = locked("# pins\ntorch==2.13.0\n\nnumpy==2.4.6\n")
    assert (finding.state, finding.found) == (State.OK, "2 as locked")


@pytest.mark.usefixtures("installed")
def test_each_wrong_or_missing_package_is_named_with_both_versions(
    locked: Callable[[str], list[Finding]],
) -> None:
    findings = locked("torch==2.13.1\nnumpy==2.4.6\npolars==2.1.0\n")
    assert [(item.name, item.state) for item in findings] == [
        ("torch", State.FAIL),
        ("polars", State.FAIL),
    ]
    assert findings[0].found == "2.13.0+cpu, locked is 2.13.1"
    assert findings[1].found == "missing, locked is 2.1.0"
    assert all("make setup" in item.mend for item in findings)


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / ".starpo").write_text("a file where the folder belongs")
    finding = doctor._writable(tmp_path)
    assert finding.state is State.FAIL
    assert "--store" in finding.mend


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._disk(tmp_path).state is State.OK
    monkeypatch.setattr(doctor, "FREE_BYTES_NEEDED", 2**80)
    assert doctor._disk(tmp_path).state is State.FAIL


def test_whatever_is_not_as_it_should_be_says_how_to_mend_it(tmp_path: Path) -> None:
    findings = diagnose(tmp_path)
    assert all(item.mend for item in findings if item.state is not State.OK)


def test_a_note_is_healthy_and_a_failure_is_not() -> None:
    note, fail = Finding("a", State.NOTE, "x", "y"), Finding("b", State.FAIL, "x", "y")
    assert healthy([note])
    assert not healthy([note, fail])


def test_findings_are_shown_word_for_word_as_table_and_json() -> None:
    finding = Finding("store", State.FAIL, "no [bold] here", "pip install -e '.[ray]'")
    screen = io.StringIO()
    Console(width=120, file=screen).print(findings_table([finding]))
    text = screen.getvalue()
    assert "no [bold] here" in text
    assert ".[ray]" in text
    assert json.loads(json.dumps(findings_json([finding])))[0]["state"] == "fail"
