import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_policy import (
    CONFIG,
    VOCABULARY,
    gradient_job,
    on_policy,
    replace_logprobs,
    tiny_batch,
    tiny_critic,
    tiny_parameters,
    tiny_sequence,
)

from models.errors import TrainingDataError
from models.gradients import GradientResult, compute_gradient
from models.log_probs import packed_log_probs
from models.policy import build_decoder
from models.rescoring import RescoringJob, rescore, with_needed_log_probs
from models.settings import KLEstimator, LossSettings, Reduction
from models.trainer import normaliser_of
from models.training_data import TrainingSequence, micro_batches, tensors_of

EVERYTHING = LossSettings(
    entropy_coefficient=0.01, kl_coefficient=0.1, importance_cap=1.5, clip_low=0.05, clip_high=0.05
)


def flat(gradients: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([value.ravel() for _, value in sorted(gradients.items())])


def rich_batch() -> list[TrainingSequence]:
    """Sequences with old and reference log-probs of other weights, so that every term acts."""
    batch = tiny_batch()
    old = rescore(RescoringJob(CONFIG, tiny_parameters(scale=0.31), batch, 1.0, 99))
    reference = rescore(RescoringJob(CONFIG, tiny_parameters(seed=3), batch, 1.0, 99))
    return [
        TrainingSequence(**{**vars(item), "old_logprobs": a, "reference_logprobs": b})
        for item, a, b in zip(batch, old, reference, strict=True)
    ]


@pytest.mark.parametrize("reduction", list(Reduction))
def test_the_gradient_equals_finite_differences_of_the_loss(reduction):
    batch = rich_batch()
    loss = EVERYTHING.model_copy(update={"reduction": reduction})
    job = gradient_job(batch, loss=loss, critic=tiny_critic())
    result = compute_gradient(job)
    rng = np.random.default_rng(0)
    for name, gradients, parameters, quantity in (
        ("policy", result.gradients, job.parameters, "loss"),
        ("critic", result.critic_gradients, job.critic, "value_loss"),
    ):
        direction = {
            key: (0.5 * rng.normal(size=value.shape) + np.sign(gradients[key])).astype(np.float32)
            for key, value in parameters.items()
        }
        step = 1e-3 / np.linalg.norm(flat(direction))
        values = []
        for sign in (1, -1):
            moved = {key: value + sign * step * direction[key] for key, value in parameters.items()}
            changed = {"parameters": moved} if name == "policy" else {"critic": moved}
            again = gradient_job(batch, loss=loss, **{"critic": job.critic, **changed})
            values.append(compute_gradient(again).sums[quantity])
        slope = (values[0] - values[1]) / (2 * step)
        assert slope == pytest.approx(float(flat(gradients) @ flat(direction)), rel=2e-2), name


def test_the_loss_equals_an_unpacked_computation_token_by_token():
    batch = tiny_batch()
    temperature = 0.6
    settings = LossSettings(entropy_coefficient=0.02)
    decoder = build_decoder(CONFIG, tensors_of(tiny_parameters()))
    total, count = 0.0, 0
    for item in batch:
        for t in np.flatnonzero(item.sampled):
            with torch.no_grad():
                prefix = torch.from_numpy(item.tokens[:t]).long()
                logits = decoder.logits(decoder.hidden(prefix, [int(t)]))[-1] / temperature
                log_p = logits.log_softmax(-1)
            ratio = float(torch.exp(log_p[item.tokens[t]] - float(item.logprobs[t])))
            a = float(item.advantages[t])
            clipped = max(-a * ratio, -a * min(max(ratio, 0.8), 1.28))
            total += min(clipped, -a * 3) if a < 0 else clipped
            total -= 0.02 * float(-(log_p.exp() * log_p).sum())
            count += 1
    found = compute_gradient(gradient_job(batch, loss=settings, temperature=temperature))
    assert found.sums["loss"] == pytest.approx(total / count, abs=1e-5)
    assert found.sums["tokens"] == count


def split_over(job_of, batch: list[TrainingSequence], lanes: int) -> GradientResult:
    results = [compute_gradient(job_of(batch[lane::lanes])) for lane in range(lanes)]
    sums = {
        name: sum(result.sums[name] for result in results)
        for name in ("loss", "tokens", "entropy", "value_loss")
    }
    return GradientResult(
        {n: sum(result.gradients[n] for result in results) for n in results[0].gradients},
        {n: sum(r.critic_gradients[n] for r in results) for n in results[0].critic_gradients},
        sums,
    )


@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize(("lanes", "micro_tokens"), [(1, 1), (1, 20), (2, 4096), (3, 15), (4, 8)])
def test_A12_lanes_and_micro_batches_change_only_rounding(reduction, lanes, micro_tokens):
    batch = rich_batch()
    loss = EVERYTHING.model_copy(update={"reduction": reduction})
    options = {"loss": loss, "critic": tiny_critic(), "normaliser": normaliser_of(batch)}
    whole = compute_gradient(gradient_job(batch, **options))
    parts = split_over(
        lambda rows: gradient_job(rows, micro_tokens=micro_tokens, **options), batch, lanes
    )
    for found, expected in (
        (flat(parts.gradients), flat(whole.gradients)),
        (flat(parts.critic_gradients), flat(whole.critic_gradients)),
    ):
        scale = max(1.0, float(np.linalg.norm(expected)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)
    for name, value in parts.sums.items():
        assert value == pytest.approx(whole.sums[name], rel=1e-5)


@given(order=st.permutations(range(6)))
@settings(max_examples=10, deadline=None)
def test_the_order_of_the_sequences_changes_only_rounding(order):
    batch = tiny_batch()
    found = compute_gradient(gradient_job([batch[index] for index in order]))
    expected = compute_gradient(gradient_job(batch))
    np.testing.assert_allclose(flat(found.gradients), flat(expected.gradients), atol=1e-6)


def test_I7_the_same_job_gives_the_same_bits():
    first, second = (compute_gradient(gradient_job(tiny_batch())) for _ in range(2))
    assert flat(first.gradients).tobytes() == flat(second.gradients).tobytes()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_L1_the_first_ratio_is_one_at_every_temperature(temperature):
    batch = on_policy(tiny_batch(), tiny_parameters(), temperature=temperature)
    sums = compute_gradient(gradient_job(batch, temperature=temperature)).sums
    assert sums["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert sums["gap"] / sums["tokens"] < 1e-5
    assert sums["kl"] == pytest.approx(0, abs=1e-6)


def test_L1_the_temperature_divides_the_logits_and_not_the_log_probs():
    item = tiny_batch()[2]
    decoder = build_decoder(CONFIG, tensors_of(tiny_parameters()))
    tokens = torch.from_numpy(item.tokens).long()
    t = int(np.flatnonzero(item.sampled)[0])
    with torch.no_grad():
        every = [
            packed_log_probs(
                decoder,
                tokens=torch.where(torch.arange(len(tokens)) == t, token, tokens),
                lengths=[len(tokens)],
                predict=torch.arange(len(tokens)) == t,
                temperature=0.6,
            )[0]
            for token in range(VOCABULARY)
        ]
    assert float(torch.cat(every).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_L2_log_probs_of_another_temperature_show_as_a_gap_and_a_ratio():
    batch = on_policy(tiny_batch(), tiny_parameters(), temperature=0.6)
    sums = compute_gradient(gradient_job(batch, temperature=1.0)).sums
    assert sums["ratio_max"] > 1.05 or sums["gap"] / sums["tokens"] > 0.05


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.8])
@pytest.mark.parametrize("estimator", list(KLEstimator))
def test_L8_the_kl_of_a_policy_to_itself_is_zero_at_every_temperature(temperature, estimator):
    loss = LossSettings(kl_coefficient=1.0, kl_estimator=estimator)
    parameters = tiny_parameters()
    batch = needed(on_policy(tiny_batch(), parameters, temperature=temperature), loss, temperature)
    sums = compute_gradient(gradient_job(batch, loss=loss, temperature=temperature)).sums
    assert sums["reference_kl"] == pytest.approx(0, abs=1e-4)


def needed(
    batch: list[TrainingSequence], loss: LossSettings, temperature: float = 1.0
) -> list[TrainingSequence]:
    from models.lane_work import run_here

    return with_needed_log_probs(
        batch,
        config=CONFIG,
        current=tiny_parameters(),
        loss=loss,
        reference=tiny_parameters(),
        temperature=temperature,
        micro_tokens=30,
        num_lanes=4,
        run=run_here,
    )


def test_rescored_log_probs_return_to_their_own_sequence_over_any_number_of_lanes():
    batch = tiny_batch(count=7)
    rescored = needed(batch, LossSettings(kl_coefficient=1.0, importance_cap=2.0))
    for item, after in zip(batch, rescored, strict=True):
        np.testing.assert_allclose(after.old_logprobs, item.logprobs, atol=1e-5)
        np.testing.assert_allclose(after.reference_logprobs, item.logprobs, atol=1e-5)
    one = needed(batch[:1], LossSettings(importance_cap=2.0))
    assert len(one) == 1
    assert needed([], LossSettings(importance_cap=2.0)) == []


def test_an_engine_that_samples_a_little_off_is_corrected_up_to_the_cap():
    batch = [replace_logprobs(item, item.logprobs - 0.4) for item in tiny_batch()]
    loss = LossSettings(importance_cap=1.2)
    corrected = compute_gradient(gradient_job(needed(batch, loss), loss=loss))
    exact = compute_gradient(gradient_job(tiny_batch()))
    assert corrected.sums["ratio_max"] == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(flat(corrected.gradients), 1.2 * flat(exact.gradients), atol=1e-5)


def test_A7_every_row_has_a_gradient():
    batch = tiny_batch()
    whole = flat(compute_gradient(gradient_job(batch)).gradients)
    for index in range(len(batch)):
        without = batch[:index] + batch[index + 1 :]
        options = {"normaliser": normaliser_of(batch)}
        less = flat(compute_gradient(gradient_job(without, **options)).gradients)
        assert np.abs(whole - less).max() > 1e-5


def test_I2_tokens_that_were_not_sampled_have_no_part_in_the_loss():
    batch = tiny_batch()
    noisy = [
        TrainingSequence(
            **{
                **vars(item),
                "advantages": np.where(item.sampled, item.advantages, 1e6).astype(np.float32),
            }
        )
        for item in batch
    ]
    expected = compute_gradient(gradient_job(batch))
    found = compute_gradient(gradient_job(noisy))
    assert flat(found.gradients).tobytes() == flat(expected.gradients).tobytes()


def test_A14_a_sequence_of_weight_zero_changes_nothing():
    batch = tiny_batch()
    padding = TrainingSequence(**{**vars(batch[-1]), "weight": 0.0})
    for reduction in Reduction:
        loss = LossSettings(reduction=reduction)
        expected = compute_gradient(gradient_job(batch, loss=loss))
        found = compute_gradient(gradient_job([*batch, padding], loss=loss))
        np.testing.assert_allclose(flat(found.gradients), flat(expected.gradients), atol=1e-6)


def test_a_good_token_becomes_more_probable_along_the_negative_gradient():
    item = tiny_sequence(np.random.default_rng(0), turns=1, advantages=np.ones(9, np.float32))
    batch = on_policy([item], tiny_parameters())
    result = compute_gradient(gradient_job(batch))
    moved = {n: v - 0.05 * result.gradients[n] for n, v in tiny_parameters().items()}
    after = rescore(RescoringJob(CONFIG, moved, batch, 1.0, 99))[0]
    assert np.nansum(after) > np.nansum(batch[0].logprobs)


@given(limit=st.integers(1, 80), sizes=st.lists(st.integers(2, 12), max_size=9))
def test_micro_batches_hold_every_sequence_once_within_the_limit(limit, sizes):
    rng = np.random.default_rng(0)
    rows = [tiny_sequence(rng, turns=1, prompt=size - 1, reply=1) for size in sizes]
    batches = list(micro_batches(rows, limit=limit))
    assert sorted(id(item) for batch in batches for item in batch) == sorted(map(id, rows))
    for batch in batches:
        assert len(batch) == 1 or sum(len(item.tokens) for item in batch) <= limit


def broken(**changes: object) -> TrainingSequence:
    return TrainingSequence(**{**vars(tiny_batch()[0]), **changes})


def test_T12_a_sampled_token_without_log_prob_is_refused():
    item = tiny_batch()[0]
    hole = item.logprobs.copy()
    hole[np.flatnonzero(item.sampled)[0]] = np.nan
    with pytest.raises(TrainingDataError, match="without a log-prob"):
        broken(logprobs=hole)
    with pytest.raises(TrainingDataError, match="without a log-prob"):
        broken(logprobs=np.zeros_like(item.logprobs))


def test_broken_training_sequences_are_refused():
    size = len(tiny_batch()[0].tokens)
    everything = np.ones(size, dtype=bool)
    with pytest.raises(TrainingDataError, match="first token"):
        broken(sampled=everything, logprobs=-np.ones(size, np.float32))
    with pytest.raises(TrainingDataError, match="unequal lengths"):
        broken(advantages=np.zeros(size + 1, np.float32))
    with pytest.raises(TrainingDataError, match="old_logprobs"):
        tiny_batch()[0].needed("old_logprobs")


def test_a_micro_batch_without_sampled_tokens_is_harmless():
    rng = np.random.default_rng(0)
    silent = tiny_sequence(
        rng, sampled=np.zeros(18, dtype=bool), logprobs=np.full(18, np.nan, np.float32)
    )
    for reduction in Reduction:
        job = gradient_job([silent], loss=LossSettings(reduction=reduction), critic=tiny_critic())
        result = compute_gradient(job)
        assert not flat(result.gradients).any()
        assert result.sums["tokens"] == 0


@pytest.mark.parametrize("estimator", list(KLEstimator))
def test_the_kl_term_is_that_of_the_policy_over_the_reference(estimator):
    loss = LossSettings(kl_coefficient=0.3, kl_estimator=estimator)
    batch = rich_batch()
    sums = compute_gradient(gradient_job(batch, loss=loss)).sums
    plain = compute_gradient(gradient_job(batch)).sums
    d = np.concatenate([item.logprobs - item.reference_logprobs for item in batch])
    d = d[np.isfinite(d)].astype(np.float64)
    closed_form = {"k1": d, "abs": abs(d), "k2": d**2 / 2, "k3": np.exp(-d) + d - 1}[estimator]
    assert sums["reference_kl"] == pytest.approx(closed_form.sum(), rel=1e-4, abs=1e-3)
    added = 0.3 * closed_form.mean()
    assert sums["loss"] == pytest.approx(plain["loss"] + added, rel=1e-4, abs=1e-4)


def test_the_critic_is_fitted_at_the_state_before_each_sampled_token():
    from models.critic import build_critic, values_of

    batch = tiny_batch()
    critic = build_critic(CONFIG, tensors_of(tiny_critic()))
    values = values_of(critic, [item.tokens for item in batch])
    errors = [
        (row[:-1][item.sampled] - item.returns[item.sampled]) ** 2
        for row, item in zip(values, batch, strict=True)
    ]
    sums = compute_gradient(gradient_job(batch, critic=tiny_critic())).sums
    assert sums["value_error"] == pytest.approx(np.concatenate(errors).sum(), rel=1e-4)
