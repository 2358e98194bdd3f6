import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import load_file
from tiny_policy import CONFIG, on_policy, tiny_batch, tiny_folder, tiny_parameters, tiny_state

from models.errors import TrainingDataError
from models.gradients import GradientJob, GradientResult
from models.lane_work import run_here
from models.settings import LossSettings, OptimiserSettings
from models.trainer import load_state, save_state, update_policy
from models.training_data import TrainingSequence

SETTINGS = OptimiserSettings(learning_rate=1e-3, ramp_updates=0, mini_batches=1)


def learn(state, batch, *, settings=SETTINGS, num_lanes=2, run=run_here, **changes):
    options = {"loss": LossSettings(), "temperature": 1.0, "seed": 0} | changes
    return update_policy(state, batch, settings=settings, num_lanes=num_lanes, run=run, **options)


def start(tmp_path: Path, *, settings=SETTINGS, with_critic=False, name="policy"):
    return tiny_state(tmp_path / name, settings=settings, with_critic=with_critic)


def weights(state) -> np.ndarray:
    return np.concatenate([value.ravel() for value in state.policy.arrays().values()]).copy()


def test_one_step_is_adamw_on_the_clipped_gradient(tmp_path):
    batch = tiny_batch()
    gradients: list[GradientResult] = []

    def spy(function, payloads):
        gradients.extend(run_here(function, payloads))
        return gradients

    settings = SETTINGS.model_copy(update={"weight_decay": 0.1, "max_gradient_norm": 0.05})
    state = start(tmp_path, settings=settings)
    before = {name: value.copy() for name, value in state.policy.arrays().items()}
    metrics = learn(state, batch, settings=settings, run=spy)
    total = {n: sum(result.gradients[n] for result in gradients) for n in before}
    norm = math.sqrt(sum(float((value.astype(np.float64) ** 2).sum()) for value in total.values()))
    assert metrics["update/gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert norm > 0.05
    for name, value in state.policy.arrays().items():
        g = total[name] * 0.05 / norm
        first, second = 0.1 * g / (1 - 0.9), 0.001 * g**2 / (1 - 0.999)
        expected = before[name] * (1 - 1e-3 * 0.1) - 1e-3 * first / (np.sqrt(second) + 1e-8)
        np.testing.assert_allclose(value, expected, atol=2e-6)


def test_the_first_mini_batch_of_an_update_has_ratio_one_and_later_ones_move(tmp_path):
    settings = SETTINGS.model_copy(update={"mini_batches": 2, "epochs": 2})
    first = learn(start(tmp_path), tiny_batch())
    several = learn(start(tmp_path), tiny_batch(), settings=settings)
    assert first["update/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert several["update/sampler_gap"] < 1e-5
    assert several["update/ratio_max"] > 1.001
    assert several["update/steps"] == 4


@pytest.mark.parametrize("with_critic", [False, True])
def test_A12_lanes_and_micro_batches_lead_to_the_same_weights(tmp_path, with_critic):
    found = []
    for num_lanes, micro_tokens in ((1, 4096), (2, 4096), (2, 10), (5, 1)):
        settings = SETTINGS.model_copy(update={"micro_tokens": micro_tokens, "mini_batches": 2})
        state = start(tmp_path, settings=settings, with_critic=with_critic)
        metrics = learn(state, tiny_batch(), settings=settings, num_lanes=num_lanes)
        found.append((metrics["update/loss"], metrics["update/gradient_norm"], weights(state)))
    for loss, norm, values in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-6)
        assert norm == pytest.approx(found[0][1], rel=1e-5)
        # AdamW's first step is the sign of the gradient: rounding shows where it is nearly zero
        assert np.quantile(np.abs(values - found[0][2]), 0.99) < 1e-5


def test_I7_the_same_update_writes_the_same_bytes(tmp_path):
    files = []
    for name in ("a", "b"):
        state = start(tmp_path, with_critic=True)
        learn(state, tiny_batch())
        save_state(state, previous=tmp_path / "policy", folder=tmp_path / name)
        files.append(
            {
                path.relative_to(tmp_path / name).as_posix(): path.read_bytes()
                for path in (tmp_path / name).rglob("*")
                if path.is_file()
            }
        )
    assert files[0] == files[1]
    assert set(files[0]) == {
        "config.json",
        "model.safetensors",
        "critic/model.safetensors",
        "trainer/optimizer.safetensors",
        "trainer/state.json",
    }


def test_the_seed_decides_which_sequences_share_a_mini_batch(tmp_path):
    settings = SETTINGS.model_copy(update={"mini_batches": 3})
    states = [start(tmp_path) for _ in range(2)]
    for seed, state in enumerate(states):
        learn(state, tiny_batch(), settings=settings, seed=seed)
    assert not np.array_equal(weights(states[0]), weights(states[1]))


@pytest.mark.parametrize("with_critic", [False, True])
def test_P1_an_update_after_a_reload_equals_one_without_it(tmp_path, with_critic):
    settings = SETTINGS.model_copy(update={"ramp_updates": 5})
    kept = start(tmp_path, settings=settings, with_critic=with_critic)
    learn(kept, tiny_batch(), settings=settings)
    save_state(kept, previous=tmp_path / "policy", folder=tmp_path / "next")
    loaded = load_state(tmp_path / "next", settings=settings, with_critic=with_critic)
    assert loaded.version == kept.version == 1
    for state in (kept, loaded):
        learn(state, tiny_batch(seed=2), settings=settings)
    assert weights(kept).tobytes() == weights(loaded).tobytes()
    if with_critic:
        for name, value in kept.critic.arrays().items():
            assert value.tobytes() == loaded.critic.arrays()[name].tobytes()


def test_the_rate_ramps_up_over_the_first_updates(tmp_path):
    settings = SETTINGS.model_copy(update={"ramp_updates": 4})
    state = start(tmp_path, settings=settings)
    rates = []
    for _ in range(6):
        learn(state, tiny_batch(), settings=settings)
        rates.append(state.policy.optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([0.00025, 0.0005, 0.00075, 0.001, 0.001, 0.001])


def poisoned(batch: list[TrainingSequence]) -> list[TrainingSequence]:
    bad = vars(batch[0]) | {"advantages": np.full(len(batch[0].tokens), np.nan, np.float32)}
    return [TrainingSequence(**bad), *batch[1:]]


@pytest.mark.parametrize("with_critic", [False, True])
def test_G4_a_step_whose_gradient_is_not_finite_is_skipped_and_counted(tmp_path, with_critic):
    state = start(tmp_path, with_critic=with_critic)
    before = weights(state)
    metrics = learn(state, poisoned(tiny_batch()))
    assert metrics["update/skipped_nonfinite"] == 1
    assert metrics["update/steps"] == 0
    np.testing.assert_array_equal(weights(state), before)
    assert not state.policy.optimiser.state
    assert all(math.isfinite(value) for value in metrics.values())


def test_G4_the_steps_beside_a_skipped_one_are_taken_and_reported_finite(tmp_path):
    settings = SETTINGS.model_copy(update={"mini_batches": 3})
    state = start(tmp_path)
    metrics = learn(state, poisoned(tiny_batch()), settings=settings)
    assert (metrics["update/steps"], metrics["update/skipped_nonfinite"]) == (2, 1)
    assert all(math.isfinite(value) for value in metrics.values())
    assert np.isfinite(weights(state)).all()


def test_A16_an_empty_batch_skips_the_update_and_says_so(tmp_path):
    state = start(tmp_path)
    before = weights(state)
    metrics = learn(state, [])
    assert metrics == {
        "update/steps": 0,
        "update/skipped_nonfinite": 0,
        "update/skipped_empty": 1,
    }
    np.testing.assert_array_equal(weights(state), before)
    assert state.version == 1


def test_A16_a_short_batch_is_scaled_by_its_own_size(tmp_path):
    batch = tiny_batch()[:2]
    settings = SETTINGS.model_copy(update={"mini_batches": 5})
    metrics = learn(start(tmp_path), batch, settings=settings)
    assert metrics["update/steps"] == 2
    full = learn(start(tmp_path), batch * 4)
    short = learn(start(tmp_path), batch)
    assert short["update/loss"] == pytest.approx(full["update/loss"], abs=1e-6)
    assert short["update/gradient_norm"] == pytest.approx(full["update/gradient_norm"], rel=1e-4)


def test_A15_a_micro_batch_larger_than_the_mini_batch_is_just_one_micro_batch(tmp_path):
    found = []
    for micro_tokens in (10**9, 200):
        settings = SETTINGS.model_copy(update={"micro_tokens": micro_tokens})
        found.append(learn(start(tmp_path), tiny_batch(), settings=settings))
    assert found[0]["update/loss"] == pytest.approx(found[1]["update/loss"], abs=1e-6)


@pytest.mark.parametrize("change", [{"mini_batches": 0}, {"micro_tokens": 0}, {"epochs": 0}])
def test_A15_sizes_of_zero_are_rejected_before_the_start(change):
    with pytest.raises(ValidationError):
        OptimiserSettings(**change)


def test_every_sequence_is_used_once_per_epoch(tmp_path):
    seen: list[int] = []

    def spy(function, jobs: list[GradientJob]):
        seen.extend(id(item) for job in jobs for item in job.sequences)
        return run_here(function, jobs)

    batch = tiny_batch(count=7)
    settings = SETTINGS.model_copy(update={"mini_batches": 3, "epochs": 2})
    learn(start(tmp_path), batch, settings=settings, run=spy, num_lanes=2)
    assert sorted(seen) == sorted([id(item) for item in batch] * 2)


def test_lanes_get_similar_numbers_of_tokens(tmp_path):
    loads: list[int] = []

    def spy(function, jobs: list[GradientJob]):
        loads.extend(sum(len(item.tokens) for item in job.sequences) for job in jobs)
        return run_here(function, jobs)

    learn(start(tmp_path), tiny_batch(count=20), run=spy)
    assert max(loads) < 1.2 * min(loads)


def test_L8_a_kl_term_needs_a_reference_and_is_zero_to_the_policy_itself(tmp_path):
    loss = LossSettings(kl_coefficient=0.5)
    batch = on_policy(tiny_batch(), tiny_parameters(), temperature=0.7)
    with pytest.raises(TrainingDataError, match="kl_coefficient"):
        learn(start(tmp_path), batch, loss=loss, temperature=0.7)
    metrics = learn(start(tmp_path), batch, loss=loss, temperature=0.7, reference=tiny_parameters())
    assert metrics["update/reference_kl"] == pytest.approx(0, abs=1e-6)
    other = learn(
        start(tmp_path), batch, loss=loss, temperature=0.7, reference=tiny_parameters(seed=4)
    )
    assert other["update/reference_kl"] > 0.01


def test_repeated_updates_raise_the_return_of_a_bandit(tmp_path):
    """Prompt 1, one sampled token; token 3 pays: the exact expected return must rise."""
    settings = OptimiserSettings(learning_rate=3e-3, ramp_updates=0, mini_batches=1)
    state = start(tmp_path, settings=settings)
    rng = np.random.default_rng(0)

    def probabilities() -> np.ndarray:
        from models.policy import build_decoder
        from models.training_data import tensors_of

        decoder = build_decoder(CONFIG, tensors_of(state.policy.arrays()))
        with torch.no_grad():
            logits = decoder.logits(decoder.hidden(torch.tensor([1]), [1]))[0]
        return logits.double().softmax(-1).numpy()

    first = probabilities()[3]
    for _ in range(30):
        p = probabilities()
        tokens = rng.choice(len(p), size=32, p=p / p.sum())
        rewards = (tokens == 3) - (tokens == 3).mean()
        batch = [
            TrainingSequence(
                tokens=np.array([1, token], np.int32),
                sampled=np.array([False, True]),
                logprobs=np.array([np.nan, np.log(p[token])], np.float32),
                advantages=np.array([0, reward], np.float32),
                returns=np.zeros(2, np.float32),
                values=np.zeros(2, np.float32),
            )
            for token, reward in zip(tokens, rewards, strict=True)
        ]
        learn(state, batch, settings=settings)
    assert probabilities()[3] > max(0.5, 2 * first)


def test_a_saved_policy_keeps_the_other_files_byte_for_byte(tmp_path):
    folder = tiny_folder(tmp_path / "policy")
    (folder / "tokenizer.json").write_text('{"kept": true}')
    state = load_state(folder, settings=SETTINGS, with_critic=False)
    learn(state, tiny_batch())
    save_state(state, previous=folder, folder=tmp_path / "next")
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "next" / name).read_bytes() == (folder / name).read_bytes()
    assert json.loads((tmp_path / "next" / "trainer" / "state.json").read_text())["version"] == 1
    stored = load_file(tmp_path / "next" / "model.safetensors")
    assert set(stored) == set(tiny_parameters())
    assert not (tmp_path / "next" / "critic").exists()
