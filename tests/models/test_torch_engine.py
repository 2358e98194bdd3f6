"""Sampling with the torch engine. The behaviours that are locked here:

- log-probs equal the training forward's at the sampling temperature, in every turn (L1, L6);
- caches, shared prompts, batch order and batch mates are invisible in the result;
- a reply holds what was sampled and nothing else, with the reason it ended (T6, T11, T12).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from engine_play import (
    TEMPERATURE,
    VOCABULARY,
    ask,
    assert_same,
    first_requests,
    ids,
    loaded,
    play,
    sample_all,
    trained_logprobs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from models.engines.base import StopReason
from models.engines.torch_engine import TorchEngine
from models.policy import Policy, save_policy
from models.sampling import uniforms
from models.settings import Sampling


def test_L1_L6_logprobs_equal_the_training_forward_in_every_turn(nano: Policy, engine: TorchEngine):
    num = 0
    for requests, replies in play(engine, first_requests()):
        for request, reply in zip(requests, replies, strict=True):
            expected = trained_logprobs(nano, request, reply)
            np.testing.assert_allclose(reply.logprobs, expected, atol=1e-5)
            num += len(reply.tokens)
    assert num > 60


def test_the_cache_of_earlier_turns_changes_nothing(nano_folder: Path, engine: TorchEngine):
    for requests, replies in play(engine, first_requests()):
        assert_same(replies, sample_all(loaded(nano_folder), requests))


def test_a_group_computes_its_first_prompt_once(engine: TorchEngine, fed: list[int]):
    sample_all(
        engine, [ask(f"e{i}", ids(i // 3, 20 + i // 3), group=f"g{i // 3}") for i in range(6)]
    )
    assert fed == [20, 21]


def test_a_second_turn_feeds_the_new_tokens_alone(engine: TorchEngine, fed: list[int]):
    first = ask("a", ids(0, 40))
    (reply,) = sample_all(engine, [first])
    sample_all(engine, [ask("a", np.concatenate([first.tokens, reply.tokens, ids(1, 5)]))])
    assert fed == [40, 1 + 5]  # the reply's last token was sampled but not fed


def test_a_prompt_that_rewrites_the_past_is_computed_afresh(nano_folder: Path, engine: TorchEngine):
    sample_all(engine, [ask("a", ids(0, 30))])
    changed = np.concatenate([ids(0, 30)[:10], ids(9, 12)])
    for tokens in (changed, changed[:6], ids(0, 30)):
        requests = [ask("a", tokens)]
        assert_same(sample_all(engine, requests), sample_all(loaded(nano_folder), requests))


def test_a_shared_first_prompt_equals_an_unshared_one(nano_folder: Path, engine: TorchEngine):
    shared = [ask(f"e{i}", ids(i // 3, 20), group=f"g{i // 3}") for i in range(6)]
    alone = [ask(item.key, item.tokens) for item in shared]
    replies = sample_all(engine, shared)
    assert_same(replies, sample_all(loaded(nano_folder), alone))
    assert len({reply.tokens.tobytes() for reply in replies}) == 6  # equal prompts, own noise


def test_members_of_a_group_with_other_prompts_are_not_mixed_up(nano_folder, engine: TorchEngine):
    mixed = [ask(f"e{i}", ids(i % 2, 20), group="g") for i in range(4)]
    alone = [ask(item.key, item.tokens) for item in mixed]
    assert_same(sample_all(engine, mixed), sample_all(loaded(nano_folder), alone))


@settings(max_examples=10)
@given(order=st.permutations(range(6)), keep=st.integers(1, 6))
def test_order_and_mates_of_the_batch_change_nothing(nano_folder: Path, order, keep):
    requests = first_requests()
    expected = sample_all(loaded(nano_folder), requests)
    chosen = order[:keep]
    replies = sample_all(loaded(nano_folder), [requests[index] for index in chosen])
    assert_same(replies, [expected[index] for index in chosen])


def test_sequences_may_come_and_go_between_turns(nano_folder: Path, engine: TorchEngine):
    history = play(loaded(nano_folder), first_requests(), turns=2)
    (first, first_replies), (second, second_replies) = history
    assert_same(sample_all(engine, first[:4]), first_replies[:4])
    assert_same(sample_all(engine, first[4:]), first_replies[4:])
    engine.release(["e1", "nobody"])
    sample_all(engine, [ask(f"other {index}", ids(index, 9)) for index in range(20)])
    chosen = [5, 1, 3]
    replies = sample_all(engine, [second[index] for index in chosen])
    assert_same(replies, [second_replies[index] for index in chosen])


def test_the_same_call_gives_the_same_bits(nano_folder: Path):
    one, two = (play(loaded(nano_folder), first_requests()) for _ in range(2))
    for (_, a), (_, b) in zip(one, two, strict=True):
        for first, second in zip(a, b, strict=True):
            assert first.tokens.tobytes() == second.tokens.tobytes()
            assert first.logprobs.tobytes() == second.logprobs.tobytes()


def test_each_position_of_a_sequence_has_its_own_noise(engine: TorchEngine, monkeypatch):
    drawn: list[int] = []

    def record(seed, keys, positions):
        drawn.extend(positions.tolist())
        return uniforms(seed, keys, positions)

    monkeypatch.setattr("models.engines.torch_engine.uniforms", record)
    history = play(engine, [ask("a", ids(0, 7))])
    assert drawn == [
        len(request.tokens) + index
        for requests, replies in history
        for request, reply in zip(requests, replies, strict=True)
        for index in range(len(reply.tokens))
    ]


def test_seed_and_key_change_the_noise(nano_folder: Path):
    def reply(key: str, seed: int) -> bytes:
        return sample_all(loaded(nano_folder), [ask(key, ids(0, 9))], seed=seed)[0].tokens.tobytes()

    assert len({reply("a", 0), reply("a", 1), reply("b", 0)}) == 3


def test_first_tokens_follow_the_softmax(nano: Policy, engine: TorchEngine):
    prompt, num = ids(0, 10), 4_000
    requests = [ask(f"e{index}", prompt, group="g", limit=1) for index in range(num)]
    counts = np.bincount(
        [int(reply.tokens[0]) for reply in sample_all(engine, requests)], minlength=VOCABULARY
    )
    with torch.no_grad():
        hidden = nano.decoder.hidden(torch.from_numpy(prompt.astype(np.int64)), [10])
        p = torch.softmax(nano.decoder.logits(hidden[-1]).double() / TEMPERATURE, -1).numpy()
    common = p * num >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(p[common], p[~common].sum()) * num
    assert len(observed) > 10
    assert chisquare(observed, expected).pvalue > 1e-3


def test_T11_T12_a_reply_holds_the_sampled_stop_token_and_nothing_after_it(
    nano: Policy, tmp_path: Path
):
    stops = list(range(72))  # a quarter of the vocabulary, so that many replies stop
    save_policy(replace(nano, generation={"eos_token_id": stops}), tmp_path / "stops")
    requests = [ask(f"e{index}", ids(index, 5), limit=4) for index in range(60)]
    replies = sample_all(loaded(tmp_path / "stops"), requests)
    reasons = {reply.stop_reason for reply in replies}
    assert reasons == {StopReason.STOP_TOKEN, StopReason.LENGTH}
    for request, reply in zip(requests, replies, strict=True):
        stopped = reply.stop_reason is StopReason.STOP_TOKEN
        assert (reply.tokens[-1] in stops) == stopped
        assert not np.isin(reply.tokens[:-1], stops).any()
        assert len(reply.tokens) == 4 or (stopped and len(reply.tokens) < 4)
        expected = trained_logprobs(nano, request, reply)  # of the stop token too
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-5)
        assert len(reply.keep_mass) == len(reply.tokens)


def test_L3_truncated_sampling_returns_the_mass_it_kept(nano: Policy, engine: TorchEngine):
    sampling = Sampling(temperature=TEMPERATURE, top_p=0.7, top_k=20)
    request = ask("a", ids(0, 9))
    (reply,) = engine.generate([request], sampling=sampling, seed=0)
    assert (reply.keep_mass < 1).any()
    full = trained_logprobs(nano, request, reply)
    np.testing.assert_allclose(reply.logprobs + np.log(reply.keep_mass), full, atol=1e-5)
