"""Sampling: the right distribution, its log-probs, and noise that depends on its arguments only."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import chisquare, kstest

from models.sampling import sample, sequence_key, uniforms
from models.settings import Sampling

NUM = 20_000
KEYS = np.array([sequence_key(f"episode {index}") for index in range(NUM)])
POSITIONS = np.full(NUM, 7, dtype=np.int64)
PINNED = [0.40024946661975636, 0.046853312413289605]
LOGITS = torch.tensor([1.0, -2.0, 0.5, 3.0, 2.0, -1.0, 2.5])


def brute_force(sampling: Sampling) -> np.ndarray:
    """The distribution by its definition, one token at a time, float64."""
    p = np.exp(LOGITS.double().numpy() / sampling.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
        p /= p.sum()
    mass = 0.0
    for token in order:
        if mass >= sampling.top_p:
            p[token] = 0
        mass += p[token]
    return p / p.sum()


def draw_many(sampling: Sampling):
    draws = torch.from_numpy(uniforms(0, KEYS, POSITIONS))
    return sample(LOGITS.expand(NUM, -1), draws, sampling)


DISTRIBUTIONS = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(temperature=2.0, top_k=3),
    Sampling(top_p=0.8),
    Sampling(temperature=1.5, top_k=5, top_p=0.7),
]


@pytest.mark.parametrize("sampling", DISTRIBUTIONS, ids=str)
def test_counts_follow_the_distribution(sampling: Sampling):
    expected = brute_force(sampling)
    counts = np.bincount(draw_many(sampling).tokens.numpy(), minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert chisquare(counts[kept], expected[kept] * NUM).pvalue > 1e-3


@pytest.mark.parametrize("sampling", DISTRIBUTIONS, ids=str)
def test_logprobs_are_those_of_the_sampling_distribution(sampling: Sampling):
    draw = draw_many(sampling)
    expected = np.log(brute_force(sampling)[draw.tokens.numpy()])
    np.testing.assert_allclose(draw.logprobs.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("sampling", DISTRIBUTIONS, ids=str)
def test_L3_keep_mass_corrects_to_the_distribution_without_truncation(sampling: Sampling):
    draw = draw_many(sampling)
    full = torch.log_softmax(LOGITS / sampling.temperature, dim=-1)
    corrected = draw.logprobs + draw.keep_mass.log()
    torch.testing.assert_close(corrected, full[draw.tokens], atol=1e-5, rtol=0)


def test_L3_the_default_truncates_nothing():
    assert not Sampling().truncates
    assert (draw_many(Sampling()).keep_mass == 1).all()


def test_temperature_zero_takes_the_likeliest_token_for_certain():
    draw = draw_many(Sampling(temperature=0))
    assert (draw.tokens == 3).all()
    assert (draw.logprobs == 0).all()


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.1, 1),
    st.integers(0, 5),
)
def test_a_token_outside_the_distribution_is_never_sampled(scores, number, top_p, top_k):
    draws = torch.tensor([number], dtype=torch.float64)
    draw = sample(torch.tensor([scores]), draws, Sampling(top_p=top_p, top_k=top_k))
    assert torch.isfinite(draw.logprobs).all()
    assert 0 <= int(draw.tokens) < len(scores)
    assert 0 < float(draw.keep_mass) <= 1 + 1e-6


def test_the_largest_number_below_one_still_gives_a_possible_token():
    scores = torch.tensor([[0.0, 0.0, -torch.inf]])
    draws = torch.tensor([1 - 2.0**-53], dtype=torch.float64)
    assert int(sample(scores, draws, Sampling()).tokens) == 1


def test_uniform_numbers_are_uniform_over_keys_positions_and_seeds():
    steps = np.arange(NUM)
    key = np.full(NUM, sequence_key("episode"))
    seeds = np.array([uniforms(seed, key[:1], steps[:1])[0] for seed in range(2_000)])
    for numbers in (uniforms(1, KEYS, POSITIONS), uniforms(1, key, steps), seeds):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert kstest(numbers, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 4 / np.sqrt(len(numbers))


@given(st.integers(-(2**63), 2**64), st.permutations(range(20)))
def test_uniform_numbers_do_not_depend_on_their_neighbours(seed: int, order: list[int]):
    keys, positions = KEYS[:20], np.arange(20)
    numbers = uniforms(seed, keys, positions)
    np.testing.assert_array_equal(uniforms(seed, keys[order], positions[order]), numbers[order])
    alone = [uniforms(seed, keys[i : i + 1], positions[i : i + 1])[0] for i in range(20)]
    np.testing.assert_array_equal(alone, numbers)


def test_the_numbers_are_pinned():
    """A change of these would change every stored rollout's replay."""
    numbers = uniforms(5, np.array([sequence_key("a"), sequence_key("b")]), np.array([0, 9]))
    np.testing.assert_allclose(numbers, PINNED, rtol=0, atol=0)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -0.1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"topp": 1}]
)
def test_impossible_distributions_are_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Sampling(**wrong)
