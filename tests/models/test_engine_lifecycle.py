"""Weights, memory and refusals of the torch engine. The behaviours that are locked here:

- weights are those of the digest that was asked for, and old ones leave memory (L9, L11);
- released sequences free their room and disturb no other;
- what cannot be served is refused by name, and a failed call leaves nothing wrong behind.
"""

import gc
from pathlib import Path

import pytest
from engine_play import (
    ask,
    assert_same,
    first_requests,
    ids,
    loaded,
    play,
    sample_all,
)

from models.engines.network import SamplingNetwork
from models.engines.torch_engine import TorchEngine
from models.errors import ContextError, NonFiniteError, RequestError, StaleWeightsError
from models.folder import weights_digest
from models.policy import load_parameters, save_next_policy


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


@pytest.mark.parametrize("released", ["e0", "e1", "e2"])
def test_releasing_one_sequence_keeps_the_others(nano_folder, engine, fed, released: str):
    play(engine, first_requests(3), turns=1)
    second, expected = play(loaded(nano_folder), first_requests(3), turns=2)[1]
    engine.release([released])
    fed.clear()
    replies = sample_all(engine, second)
    assert sorted(fed) == sorted(
        len(item.tokens) if item.key == released else 41 for item in second
    )
    assert_same(replies, expected)


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
