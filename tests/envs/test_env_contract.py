"""The contract shared by all, for every tag; and that the checker finds a planted fault."""

import json
import os
import random
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from envs.bandit import Bandit
from envs.base import Split
from envs.checker import (
    check_contract,
    check_global_generators,
    check_seeding,
    check_splits,
    check_steps,
)
from envs.errors import ContractError, EpisodeOverError, ResetOptionsError
from envs.frozen_lake import FrozenLake
from envs.registration import register_environment
from envs.tags import TAGS, get_tag, make_environment

ALL_TAGS = sorted(TAGS)
FIRST_OBSERVATIONS = """
import json
from envs.base import Split
from envs.tags import TAGS, make_environment
texts = {}
for name, tag in sorted(TAGS.items()):
    for split in Split:
        environment = make_environment(tag, split=split)
        for seed in range(10):
            text, _ = environment.reset(seed=seed)
            step = environment.step(environment.action_names[seed % len(environment.action_names)])
            texts[f"{name} {split} {seed}"] = [text, *step]
print(json.dumps(texts))
"""


@pytest.mark.parametrize("name", ALL_TAGS)
def test_gymnasium_accepts_the_environment(name):
    tag = get_tag(name)
    environment = gymnasium.make(
        tag.environment, settings=tag.environment_settings(), render_mode=tag.render_mode
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment.unwrapped)


@pytest.mark.parametrize("name", ALL_TAGS)
def test_the_contract_holds(name):
    check_contract(lambda split: make_environment(get_tag(name), split=split))


def test_P6_reset_seed_is_obeyed_or_registration_is_refused():
    class OneInstance(FrozenLake):
        def _begin(self, seed, noise):
            super()._begin(0, noise)

    class Unseeded(FrozenLake):
        def _begin(self, seed, noise):
            super()._begin(int.from_bytes(os.urandom(4), "big"), noise)

    for environment, clause in ((OneInstance, "ignores its seed"), (Unseeded, "two instances")):
        with pytest.raises(ContractError, match=clause):
            register_environment("starpo/Broken-v0", environment=environment)
        assert "starpo/Broken-v0" not in gymnasium.registry


def test_the_checker_finds_a_moved_global_generator():
    class Global(FrozenLake):
        def _begin(self, seed, noise):
            super()._begin(seed, noise)
            random.seed(seed)

    with pytest.raises(ContractError, match="global state"):
        check_global_generators(Global)


def test_the_checker_finds_shared_instances():
    class OneSplit(FrozenLake):
        def _begin(self, seed, noise):
            self.split = Split.TRAIN
            super()._begin(seed, noise)

    with pytest.raises(ContractError, match="in both splits"):
        check_splits(lambda split: OneSplit(split=split), seeds=range(50))


def test_the_checker_finds_text_in_info():
    class Chatty(FrozenLake):
        def _numbers(self):
            return {"note": "hello"}

    with pytest.raises(ContractError, match="note"):
        check_steps(Chatty)


def test_the_checker_finds_an_invalid_action_that_acts():
    class Eager(FrozenLake):
        def step(self, action):
            return super().step(action if action in self.action_names else "Left")

    with pytest.raises(ContractError, match="unknown name"):
        check_steps(Eager)


def test_a_seed_means_the_same_in_other_processes_and_in_threads():
    root = Path(__file__).parents[2]
    printed = [
        subprocess.run(
            [sys.executable, "-c", FIRST_OBSERVATIONS],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert printed[0] == printed[1]
    texts = json.loads(printed[0])
    assert len(texts) == 20 * len(TAGS)
    for seed in range(10):
        environment = make_environment(get_tag("FrozenLake"), split=Split.TRAIN)
        assert environment.reset(seed=seed)[0] == texts[f"FrozenLake train {seed}"][0]

    def first(seed: int) -> str:
        environment = make_environment(get_tag("ShortSokoban"), split=Split.TRAIN)
        return environment.reset(seed=seed)[0]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(first, range(50))) == [first(seed) for seed in range(50)]


@pytest.mark.parametrize("name", ALL_TAGS)
def test_the_global_generators_are_untouched(name):
    before = (random.getstate(), repr(np.random.get_state()), torch.get_rng_state())
    environment = make_environment(get_tag(name), split=Split.TRAIN)
    environment.reset(seed=1)
    environment.optimal_action()
    environment.naive_action()
    environment.step(environment.action_names[0])
    assert random.getstate() == before[0]
    assert repr(np.random.get_state()) == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("name", ["Bandit", "ShortSokoban", "SimpleSokoban", "FrozenLake"])
def test_no_instance_is_in_both_splits_over_2000_seeds(name):
    check_splits(lambda split: make_environment(get_tag(name), split=split), seeds=range(2_000))


@pytest.mark.parametrize("name", ["ShortSokoban", "FrozenLake"])
def test_instances_of_two_seeds_differ(name):
    environment = make_environment(get_tag(name), split=Split.TRAIN)
    texts = {environment.reset(seed=seed)[0] for seed in range(200)}
    assert len(texts) > 190


@pytest.mark.parametrize("name", ALL_TAGS)
def test_members_of_a_group_start_from_the_same_text(name):
    environment = make_environment(get_tag(name), split=Split.TRAIN)
    texts = {environment.reset(seed=5, options={"noise_seed": n})[0] for n in range(8)}
    assert len(texts) == 1


@pytest.mark.parametrize("name", ALL_TAGS)
def test_planning_ahead_leaves_the_environment_as_it_is(name):
    environment = make_environment(get_tag(name), split=Split.TRAIN)
    twin = make_environment(get_tag(name), split=Split.TRAIN)
    text, _ = environment.reset(seed=3)
    twin.reset(seed=3)
    for action in environment.action_names:
        environment.after(action)
    assert environment.observation() == text
    action = environment.optimal_action()
    assert environment.step(action) == twin.step(action)


def test_a_step_after_the_end_or_before_the_start_is_an_error():
    bandit = Bandit()
    with pytest.raises(EpisodeOverError, match="hint: call `reset`"):
        bandit.step("Nurse")
    bandit.reset(seed=0)
    bandit.step(bandit.action_names[0])
    with pytest.raises(EpisodeOverError):
        bandit.step(bandit.action_names[0])


def test_an_unknown_reset_option_is_named():
    with pytest.raises(ResetOptionsError, match="noise_sead"):
        Bandit().reset(seed=0, options={"noise_sead": 1})


def test_seeds_are_checked_in_both_splits_of_a_users_environment():
    check_seeding(lambda: FrozenLake(split=Split.EVALUATION))
