"""The torch engine. The behaviours that are locked here:

- log-probs equal the training forward's at the sampling temperature, in every turn (L1, L6);
- caches, shared prompts, batch order and batch mates are invisible in the result;
- a reply holds what was sampled and nothing else, with the reason it ended (T6, T11, T12);
- weights are those of the digest that was asked for, and old ones leave memory (L9, L11);
- what cannot be served is refused by name, and a failed call leaves nothing wrong behind.
"""

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from models.engines.base import Completion, Request, StopReason
from models.engines.network import SamplingNetwork
from models.engines.torch_engine import TorchEngine
from models.errors import ContextError, NonFiniteError, RequestError, StaleWeightsError
from models.log_probs import packed_log_probs
from models.policy import Policy, load_parameters, save_next_policy, save_policy, weights_digest
from models.sampling import Sampling

VOCABULARY = 288
TEMPERATURE = 0.6


def loaded(folder: Path) -> TorchEngine:
    engine = TorchEngine()
    engine.load(folder, digest=weights_digest(folder))
    return engine


@pytest.fixture
def engine(nano_folder: Path) -> TorchEngine:
    return loaded(nano_folder)


def ids(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(8, VOCABULARY, count).astype(np.int32)


def ask(key: str, tokens: np.ndarray, *, group: str = "", limit: int = 12) -> Request:
    return Request(key=key, tokens=tokens, group=group or key, max_new_tokens=limit)


def sample_all(engine: TorchEngine, requests: list[Request], *, seed: int = 0) -> list[Completion]:
    return engine.generate(requests, sampling=Sampling(temperature=TEMPERATURE), seed=seed)


def first_requests(num: int = 6) -> list[Request]:
    return [ask(f"e{index}", ids(index, 3 + 2 * index), limit=4 + index) for index in range(num)]


def play(engine: TorchEngine, requests: list[Request], *, turns: int = 3):
    """Several turns; returns per turn the requests and completions."""
    history = []
    for turn in range(turns):
        replies = sample_all(engine, requests)
        history.append((requests, replies))
        requests = [
            ask(old.key, np.concatenate([old.tokens, new.tokens, ids(turn + 50, 5)]), limit=9)
            for old, new in zip(requests, replies, strict=True)
        ]
    return history


def trained_logprobs(policy: Policy, request: Request, reply: Completion) -> np.ndarray:
    tokens = torch.from_numpy(np.concatenate([request.tokens, reply.tokens]).astype(np.int64))
    predict = torch.arange(len(tokens)) >= len(request.tokens)
    with torch.no_grad():
        log_probs, _ = packed_log_probs(
            policy.decoder,
            tokens=tokens,
            lengths=[len(tokens)],
            predict=predict,
            temperature=TEMPERATURE,
        )
    return log_probs.numpy()


def assert_same(first: list[Completion], second: list[Completion]) -> None:
    for a, b in zip(first, second, strict=True):
        assert (a.key, a.stop_reason) == (b.key, b.stop_reason)
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


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


def test_a_second_turn_feeds_the_new_tokens_alone(engine: TorchEngine, monkeypatch):
    fed: list[int] = []
    prefill = SamplingNetwork.prefill

    def count(self, slots, new, starts):
        fed.extend(map(len, new))
        return prefill(self, slots, new, starts)

    monkeypatch.setattr(SamplingNetwork, "prefill", count)
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
    chosen = [5, 1, 3]
    replies = sample_all(engine, [second[index] for index in chosen])
    assert_same(replies, [second_replies[index] for index in chosen])


def test_the_same_call_gives_the_same_bits(nano_folder: Path):
    one, two = (play(loaded(nano_folder), first_requests()) for _ in range(2))
    for (_, a), (_, b) in zip(one, two, strict=True):
        for first, second in zip(a, b, strict=True):
            assert first.tokens.tobytes() == second.tokens.tobytes()
            assert first.logprobs.tobytes() == second.logprobs.tobytes()


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


def test_L9_the_digest_is_that_of_the_loaded_weights(nano_folder: Path, tmp_path: Path):
    new = {name: value * 1.1 for name, value in load_parameters(nano_folder).items()}
    save_next_policy(nano_folder, new, tmp_path / "next")
    old_digest, new_digest = weights_digest(nano_folder), weights_digest(tmp_path / "next")
    engine = loaded(nano_folder)
    requests = first_requests()
    before = sample_all(engine, requests)
    assert engine.weight_digest == old_digest
    with pytest.raises(StaleWeightsError, match=new_digest[:12]):
        engine.load(nano_folder, digest=new_digest)
    assert engine.weight_digest == old_digest
    engine.load(tmp_path / "next", digest=new_digest)
    assert engine.weight_digest == new_digest
    after = sample_all(engine, requests)  # the same keys and prompts: no old cache may be used
    assert_same(after, sample_all(loaded(tmp_path / "next"), requests))
    assert any(a.tokens.tobytes() != b.tokens.tobytes() for a, b in zip(before, after, strict=True))


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_L11_memory_is_flat_over_100_loads(nano_folder: Path):
    engine, digest = TorchEngine(), weights_digest(nano_folder)
    requests = [ask(f"e{i}", ids(i, 150), limit=2) for i in range(16)]  # a cache of 1.5 MiB
    for turn in range(110):
        engine.load(nano_folder, digest=digest)
        sample_all(engine, requests)
        if turn == 9:
            start = resident_mib()
    assert resident_mib() - start < 30


def test_released_sequences_free_their_slots(engine: TorchEngine):
    for turn in range(5):
        requests = [ask(f"turn {turn} e{i}", ids(i, 8), limit=2) for i in range(10)]
        sample_all(engine, requests)
        engine.release([request.key for request in requests])
    cache = engine._network.cache
    assert cache.num_sequences == 0
    assert cache.keys.shape[1] <= 16


def test_a_failed_call_leaves_no_wrong_cache(nano_folder: Path, engine: TorchEngine, monkeypatch):
    requests = first_requests()
    sample_all(engine, requests)
    others = [ask(item.key, ids(70, 30)) for item in requests]
    with monkeypatch.context() as patch:
        patch.setattr(SamplingNetwork, "step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sample_all(engine, others)
    expected = sample_all(loaded(nano_folder), requests)
    assert_same(sample_all(engine, requests), expected)


def test_an_empty_list_of_requests_gives_an_empty_list(engine: TorchEngine):
    assert sample_all(engine, []) == []


@pytest.mark.parametrize(
    ("requests", "error", "found"),
    [
        ([ask("a", ids(0, 3)), ask("a", ids(1, 3))], RequestError, "two requests"),
        ([ask("a", ids(0, 0))], RequestError, "0 prompt tokens"),
        ([ask("a", ids(0, 3), limit=0)], RequestError, "at most 0"),
        ([ask("a", ids(0, 250), limit=7)], ContextError, "context of 256"),
    ],
)
def test_what_cannot_be_served_is_refused(engine: TorchEngine, requests, error, found):
    with pytest.raises(error, match=f"{found}(.|\n)*hint: "):
        sample_all(engine, requests)


def test_an_engine_without_weights_says_so():
    engine = TorchEngine()
    assert engine.weight_digest == ""
    with pytest.raises(StaleWeightsError, match="no weights"):
        sample_all(engine, first_requests())


def test_G4_broken_weights_are_never_sampled_from(nano_folder: Path, tmp_path: Path):
    weights = load_parameters(nano_folder)
    weights["model.norm.weight"][0] = float("nan")
    save_next_policy(nano_folder, weights, tmp_path / "broken")
    with pytest.raises(NonFiniteError, match="hint: "):
        sample_all(loaded(tmp_path / "broken"), first_requests())
