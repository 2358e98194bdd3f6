from pathlib import Path

import pytest

from flows.errors import ExperimentError
from flows.experiment import Scale, load_experiment, parse_overrides


def test_the_shipped_base_experiment_is_valid() -> None:
    experiment = load_experiment()
    assert experiment.env.tag == "ShortSokoban"
    assert experiment.digest == load_experiment({}).digest


@pytest.mark.parametrize("tag", ["Bandit", "FrozenLake", "ShortSokoban", "SimpleSokoban"])
def test_G2_every_shipped_tag_gives_a_valid_experiment(tag: str) -> None:
    assert load_experiment({"env.tag": tag}, scale=Scale.NANO).env.tag == tag


def test_overrides_are_read_by_dotted_name() -> None:
    overrides = parse_overrides(["rollout.groups=6", "update.optimiser.learning_rate=1e-3"])
    experiment = load_experiment(overrides)
    assert experiment.rollout.groups == 6
    assert experiment.update.optimiser.learning_rate == 0.001


def test_an_overridden_value_changes_the_digest_and_a_name_too() -> None:
    assert load_experiment({"seed": 1}).digest != load_experiment({"seed": 2}).digest


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"rollout.group": 4},
            "hint: did you mean `rollout.groups`",
        ),
        ({"nonsense": 4}, "unknown setting `nonsense`\nhint: known here: name, preset, seed"),
        ({"rollout.groups": 0}, "`rollout.groups` = 0: .*greater than or equal to 1"),
        ({"rollout.groups": "many"}, "`rollout.groups` = 'many': .*valid integer"),
        ({"rollout.group_size": 1}, "compares the members of a group\nhint"),
        ({"env.tag": "Socoban"}, "did you mean"),
        ({"env.settings.width2": 3}, "width2"),
        ({"update.optimiser.mini_batches": 7}, "256 episodes .* do not divide"),
        ({"rollout.sampling.temperature": -1}, "`rollout.sampling.temperature` = -1"),
    ],
)
def test_bad_settings_stop_with_the_key_and_the_mend(overrides: dict, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        load_experiment(overrides)


def test_an_argument_without_equals_is_explained() -> None:
    with pytest.raises(ExperimentError, match="key=value"):
        parse_overrides(["rollout.groups"])


def test_a_missing_parameter_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"params\.yaml"):
        load_experiment(path=tmp_path / "params.yaml")
