"""Fitting to demonstrations: the loss, its gradient, the schedule, and equal bits."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_policy import CONFIG, VOCABULARY, tiny_parameters

from models.decoder import Decoder
from models.lane_work import run_here
from models.policy import build_decoder
from models.settings import SupervisedSettings
from models.supervised import (
    SupervisedJob,
    SupervisedResult,
    SupervisedSequence,
    fit_demonstrations,
    supervised_gradient,
)
from models.training_data import tensors_of

SETTINGS = SupervisedSettings(batch=4, learning_rate=1e-2, ramp_share=0.0)


def demonstrations(count: int = 8) -> list[SupervisedSequence]:
    """A prompt of random ids, then a reply that repeats its first id three times."""
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        prompt = rng.integers(0, VOCABULARY, 2 + index % 3)
        tokens = np.concatenate([prompt, [prompt[0]] * 3]).astype(np.int32)
        rows.append(SupervisedSequence(tokens, np.arange(len(tokens)) >= len(prompt)))
    return rows


def job_of(sequences: list[SupervisedSequence], **changes) -> SupervisedJob:
    num_targets = sum(int(item.targets.sum()) for item in sequences)
    content = {"config": CONFIG, "parameters": tiny_parameters(), "num_targets": num_targets}
    return SupervisedJob(sequences=sequences, **{**content, **changes})


def fitted(*, num_lanes: int = 2, settings=SETTINGS, seed: int = 0, run=run_here, epochs=None):
    decoder = build_decoder(CONFIG, tensors_of(tiny_parameters()))
    if epochs:
        settings = settings.model_copy(update={"epochs": epochs})
    options = {"settings": settings, "seed": seed, "num_lanes": num_lanes, "run": run}
    fit = fit_demonstrations(decoder, demonstrations(), **options)
    return fit, weights(decoder)


def weights(decoder: Decoder) -> np.ndarray:
    return np.concatenate([value.detach().numpy().ravel() for value in decoder.parameters()])


def mean_loss(parameters, sequences: list[SupervisedSequence]) -> float:
    """Cross-entropy, one token at a time, in double precision."""
    decoder = build_decoder(CONFIG, tensors_of(parameters)).double()
    total, count = 0.0, 0
    with torch.no_grad():
        for item in sequences:
            ids = torch.from_numpy(item.tokens).long()
            logits = decoder.logits(decoder.hidden(ids, [len(ids)]))
            for place in np.flatnonzero(item.targets):
                p = torch.softmax(logits[place - 1], dim=-1)[ids[place]]
                total, count = total - math.log(float(p)), count + 1
    return total / count


def test_the_loss_is_the_mean_cross_entropy_of_the_targets_alone():
    sequences = demonstrations()
    result = supervised_gradient(job_of(sequences))
    assert result.loss == pytest.approx(mean_loss(tiny_parameters(), sequences), rel=1e-5)


def test_the_gradient_equals_finite_differences():
    sequences = demonstrations(3)
    gradients = supervised_gradient(job_of(sequences)).gradients
    rng = np.random.default_rng(1)
    for name, value in tiny_parameters().items():
        direction = rng.normal(size=value.shape)
        sides = []
        for step in (1e-3, -1e-3):
            moved = {**tiny_parameters(), name: (value + step * direction).astype(np.float32)}
            sides.append(mean_loss(moved, sequences))
        slope = (sides[0] - sides[1]) / 2e-3
        assert float((gradients[name] * direction).sum()) == pytest.approx(
            slope, rel=2e-3, abs=2e-4
        ), name


def test_A12_the_lanes_parts_add_up_to_the_whole():
    sequences = demonstrations()
    whole = supervised_gradient(job_of(sequences))
    count = sum(int(item.targets.sum()) for item in sequences)
    parts = [
        supervised_gradient(job_of(sequences[lane::3], num_targets=count)) for lane in range(3)
    ]
    assert sum(part.loss for part in parts) == pytest.approx(whole.loss, rel=1e-6)
    for name, gradient in whole.gradients.items():
        total = sum(part.gradients[name] for part in parts)
        np.testing.assert_allclose(total, gradient, atol=1e-6)


def test_fitting_learns_the_demonstrations():
    fit, _ = fitted(epochs=30)
    assert len(fit.losses) == 60
    assert np.mean(fit.losses[-5:]) < 0.2 * fit.losses[0]


def test_I7_the_same_fit_gives_the_same_bits_and_lanes_change_rounding_only():
    (fit, first), (again, second), (_, wide) = fitted(), fitted(), fitted(num_lanes=4)
    assert fit == again
    assert first.tobytes() == second.tobytes()
    assert np.quantile(np.abs(first - wide), 0.99) < 1e-4


def test_every_demonstration_is_used_once_an_epoch_in_an_order_of_the_seed():
    def order(seed: int) -> list[bytes]:
        seen: list[bytes] = []

        def spy(function, jobs: list[SupervisedJob]) -> list[SupervisedResult]:
            seen.extend(item.tokens.tobytes() for job in jobs for item in job.sequences)
            return run_here(function, jobs)

        fitted(run=spy, seed=seed, epochs=2)
        return seen

    first, other = order(0), order(1)
    assert sorted(first) == sorted([item.tokens.tobytes() for item in demonstrations()] * 2)
    assert sorted(first) == sorted(other)
    assert first != other
    assert first[:8] != first[8:]  # each epoch has its own order


def test_a_last_batch_that_is_short_is_learned_from_at_its_own_scale():
    settings = SETTINGS.model_copy(update={"batch": 5})
    sizes: list[int] = []

    def spy(function, jobs: list[SupervisedJob]) -> list[SupervisedResult]:
        targets = sum(int(item.targets.sum()) for job in jobs for item in job.sequences)
        assert {job.num_targets for job in jobs} == {targets}
        sizes.append(targets)
        return run_here(function, jobs)

    fitted(settings=settings, run=spy)
    assert sizes == [15, 9]


def test_the_rate_rises_linearly_then_falls_like_a_cosine(monkeypatch):
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def spy(self, *options):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *options)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    settings = SETTINGS.model_copy(update={"ramp_share": 0.25})
    fitted(settings=settings, epochs=4)  # 8 steps, 2 of them on the ramp
    falling = [0.5 * (1 + math.cos(math.pi * step / 6)) for step in range(6)]
    assert rates == pytest.approx([0.005, 0.01, *[0.01 * share for share in falling]])


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"learning_rate": 0}, {"ramp_share": 1}])
def test_impossible_settings_of_a_fit_are_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SupervisedSettings(**wrong)
