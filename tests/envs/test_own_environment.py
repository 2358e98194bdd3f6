"""The worked example of the README: an environment and a reward by import path."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from envs.base import Split
from envs.checker import check_contract
from envs.demonstrations import DemonstrationSettings, demonstrate
from envs.errors import EntryPointError, NoSolverError, TagSettingsError
from envs.rewards import RewardTiming, load_reward, turn_rewards
from envs.tags import get_tag, make_environment

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def test_a_class_becomes_a_tag_with_its_defaults() -> None:
    tag = get_tag("walk:Walk")
    assert tag.name == "walk:Walk"
    assert tag.instruction == "You stand on a line of cells. Walk to the goal in few steps."


def test_its_settings_are_validated() -> None:
    tag = get_tag("walk:Walk")
    assert tag.with_overrides(settings={"goal_reward": 2.0}).environment_settings().goal_reward == 2
    with pytest.raises(TagSettingsError, match="goal_reward"):
        tag.with_overrides(settings={"gaol_reward": 2.0})


def test_it_keeps_the_contract() -> None:
    tag = get_tag("walk:Walk")
    check_contract(lambda split: make_environment(tag, split=split))


def test_its_own_solver_demonstrates_it() -> None:
    golden = DemonstrationSettings(random_share=0.0)
    tag = get_tag("walk:Walk").with_overrides(prompt="compact", max_turns=15, max_actions=15)
    played = [
        demonstrate(tag, split=Split.TRAIN, seed=seed, settings=golden, thinking=True)
        for seed in range(20)
    ]
    assert all(item.success for item in played)


def test_a_tag_that_another_process_made_is_played_here() -> None:
    code = (
        "import pickle, sys; from envs.base import Split; from envs.tags import make_environment\n"
        "tag = pickle.loads(sys.stdin.buffer.read())\n"
        "print(make_environment(tag, split=Split.TRAIN).reset(seed=0)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(get_tag("walk:Walk")),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=False,
    )
    assert sorted(done.stdout.decode().strip().replace(".", "")) == ["G", "P"], done.stderr.decode()


def test_without_a_solver_the_message_says_what_to_write() -> None:
    from walk import Walk

    from envs.base import TextEnvironment

    environment = make_environment(get_tag("walk:Walk"), split=Split.TRAIN)
    with pytest.raises(NoSolverError, match=r"`Walk` has no solver(.|\n)*optimal_action"):
        TextEnvironment.optimal_action(environment)
    assert isinstance(environment, Walk)


@pytest.mark.parametrize("path", ["walk:Nothing", "nowhere:Walk"])
def test_I9_a_path_that_names_nothing_is_refused_by_name(path: str) -> None:
    with pytest.raises(EntryPointError, match=path):
        get_tag(path)


def test_I9_a_path_to_something_else_is_refused() -> None:
    with pytest.raises(TagSettingsError, match="Tag"):
        get_tag("walk:CELLS")


def test_its_reward_pays_at_the_end() -> None:
    from envs.rewards import PlayedEpisode

    played = PlayedEpisode(
        observations=("a", "b", "c"),
        replies=("x", "y"),
        actions=(("Left", "Left"), ("Left",)),
        valid=(True, True),
        rewards=(0.0, 1.0),
        success=True,
        terminated=True,
        truncated=False,
        metrics={},
    )
    function = load_reward("walk:shorter_is_better")
    found = turn_rewards(played, function=function, timing=RewardTiming.TURN)
    assert found == pytest.approx([0.0, 0.85])
