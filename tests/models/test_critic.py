import numpy as np
import pytest
import torch
from tiny_policy import CONFIG, tiny_batch, tiny_critic, tiny_folder

import models.critic
from models.critic import build_critic, critic_parameters, load_critic, save_critic, values_of
from models.lane_work import run_here
from models.settings import LossSettings, OptimiserSettings
from models.trainer import load_state, save_state, update_policy
from models.training_data import TrainingSequence, tensors_of


def test_a_fresh_critic_has_the_policys_trunk_and_values_zero(tmp_path):
    folder = tiny_folder(tmp_path / "policy")
    values = values_of(load_critic(folder), [np.arange(6, dtype=np.int32)])
    assert not values[0].any()
    assert len(values[0]) == 7


def test_the_value_of_a_state_is_read_before_its_token():
    """Values before token t may depend on the tokens up to t - 1 only, and must depend on those."""
    critic = build_critic(CONFIG, tensors_of(tiny_critic()))
    tokens = np.arange(8, dtype=np.int32)
    changed = tokens.copy()
    changed[4] = 15
    before, after = values_of(critic, [tokens, changed])
    np.testing.assert_allclose(before[:5], after[:5], atol=1e-6)
    assert abs(before[5] - after[5]) > 1e-3
    assert before[0] == 0


def test_I6_values_do_not_depend_on_batching_or_order(monkeypatch):
    critic = build_critic(CONFIG, tensors_of(tiny_critic()))
    rows = [item.tokens for item in tiny_batch(count=8)]
    together = values_of(critic, rows)
    monkeypatch.setattr(models.critic, "VALUE_TOKENS", 20)
    backwards = values_of(critic, rows[::-1])[::-1]
    alone = [values_of(critic, [row])[0] for row in rows]
    for a, b, c in zip(together, backwards, alone, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        np.testing.assert_allclose(a, c, atol=1e-5)


def test_no_sequences_have_no_values():
    assert values_of(build_critic(CONFIG, tensors_of(tiny_critic())), []) == []


def test_a_saved_critic_is_loaded_back(tmp_path):
    folder = tiny_folder(tmp_path / "policy")
    parameters = tensors_of(tiny_critic())
    save_critic(parameters, folder)
    loaded = critic_parameters(folder)
    assert set(loaded) == set(parameters)
    for name, value in parameters.items():
        assert torch.equal(loaded[name], value)


def test_training_brings_the_values_to_the_returns(tmp_path):
    folder = tiny_folder(tmp_path / "policy")
    settings = OptimiserSettings(
        critic_learning_rate=0.01, ramp_updates=0, mini_batches=1, max_gradient_norm=10
    )
    batch = [
        TrainingSequence(**{**vars(item), "returns": np.full(len(item.tokens), sign, np.float32)})
        for item, sign in zip(tiny_batch(), (1, -1, 1, -1, 1, -1), strict=True)
    ]
    state = load_state(folder, settings=settings, with_critic=True)
    errors = [
        update_policy(
            state,
            batch,
            loss=LossSettings(value_clip=None),
            settings=settings,
            temperature=1.0,
            seed=0,
            num_lanes=2,
            run=run_here,
        )["update/value_error"]
        for _ in range(40)
    ]
    assert errors[0] == pytest.approx(1)
    assert errors[-1] < 0.1
    save_state(state, previous=folder, folder=tmp_path / "next")
    values = values_of(load_critic(tmp_path / "next"), [item.tokens for item in batch])
    for item, row in zip(batch, values, strict=True):
        assert np.abs(row[:-1][item.sampled] - item.returns[item.sampled]).mean() < 0.6
