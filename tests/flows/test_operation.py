"""The section `operation` of params.yaml."""

import pytest

import flows.operation
from flows.errors import ExperimentError
from flows.operation import read_operation


def test_the_settings_of_params_yaml_are_valid() -> None:
    found = read_operation()
    assert found.retries >= 1
    assert found.stage_timeout_s > 60


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"stage_timeout_s": 0, "retries": 1, "retry_after_s": 1}, "stage_timeout_s"),
        ({"stage_timeout_s": 9, "retries": -1, "retry_after_s": 1}, "retries"),
        ({"stage_timeout_s": 9, "retries": 1, "retry_after_s": 1, "retry": 1}, "retry"),
        ({}, "stage_timeout_s"),
    ],
)
def test_a_bad_section_is_refused_by_name(
    section: dict[str, float], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows.operation, "read_params", lambda: {"operation": section})
    with pytest.raises(ExperimentError, match=f"section `operation` of params.yaml: `{message}`"):
        read_operation()
