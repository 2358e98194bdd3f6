import json
from collections import Counter
from pathlib import Path

import pytest

from tasks.errors import ReferenceFolderError
from tasks.reference import COMPUTE, check_folder, is_met

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "reference"
needs_folder = pytest.mark.skipif(not FOLDER.is_dir(), reason="no reference numbers here")


@needs_folder
@pytest.mark.parametrize("name", sorted(COMPUTE))
def test_every_reference_number_is_met(name: str) -> None:
    results = [result for result in check_folder(FOLDER) if result.file == name]
    assert results
    assert [result for result in results if not result.met] == []


@needs_folder
def test_every_case_of_the_files_is_compared() -> None:
    compared = Counter(result.file for result in check_folder(FOLDER))
    for name in COMPUTE:
        cases = json.loads((FOLDER / name).read_text())["cases"]
        assert compared[name] >= len(cases)
    own = {result.quantity for result in check_folder(FOLDER)}
    assert own >= {"advantages", "returns", "whitened", "grpo", "dr_grpo", "rloo", "k1", "k2", "k3"}
    assert own >= {"abs", "loss", "kept", "pass_at_k", "token-mean", "seq-mean-token-mean"}
    assert own >= {"seq-mean-token-sum", "seq-mean-token-sum-norm"}


def write(folder: Path, name: str, cases: list[dict]) -> None:
    (folder / name).write_text(json.dumps({"tolerance": 1e-6, "cases": cases}))


def test_a_wrong_number_is_reported_with_both_values(tmp_path: Path) -> None:
    case = {"id": "x", "samples": 4, "successes": 1, "k": 1, "pass_at_k": 0.26}
    write(tmp_path, "pass_at_k.json", [case])
    (result,) = check_folder(tmp_path)
    assert not result.met
    assert (result.case, result.quantity, result.expected, result.found) == (
        "x",
        "pass_at_k",
        0.26,
        0.25,
    )


def test_a_rloo_spread_below_the_grpo_threshold_is_not_lost(tmp_path: Path) -> None:
    returns = [50.0, 50.00004]
    expected = [-4e-5, 4e-5]
    case = {"id": "x", "estimator": "group", "returns_in": returns, "rloo": expected}
    write(tmp_path, "advantages.json", [case])
    assert all(result.met for result in check_folder(tmp_path))


@pytest.mark.parametrize(
    ("found", "expected", "met"),
    [
        ([1.0, 2.0], [1.0, 2.0000001], True),
        ([1.0, 2.0], [1.0, 2.00001], False),
        (1e6, 1e6 + 0.5, True),
        ([1], [1, 2], False),
        (float("nan"), 0.0, False),
        ([], [], True),
    ],
)
def test_the_tolerance_is_relative_above_one(found: object, expected: object, met: bool) -> None:
    assert is_met(found, expected, tolerance=1e-6) is met


def test_a_folder_without_known_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReferenceFolderError, match=r"known files are advantages\.json"):
        check_folder(tmp_path)


def test_a_case_of_an_unknown_kind_is_named(tmp_path: Path) -> None:
    write(tmp_path, "losses.json", [{"id": "odd", "kind": "hinge"}])
    with pytest.raises(ReferenceFolderError, match="`odd` has an unknown `kind`: `hinge`"):
        check_folder(tmp_path)
