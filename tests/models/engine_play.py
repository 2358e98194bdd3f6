"""Requests to an engine, turns of play, and the training forward beside them."""

from pathlib import Path

import numpy as np
import torch

from models.engines.base import Completion, Request
from models.engines.torch_engine import TorchEngine
from models.folder import weights_digest
from models.log_probs import packed_log_probs
from models.policy import Policy
from models.settings import Sampling

VOCABULARY = 288
TEMPERATURE = 0.6


def loaded(folder: Path) -> TorchEngine:
    engine = TorchEngine()
    engine.load(folder, digest=weights_digest(folder))
    return engine


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
            ask(old.key, np.concatenate([old.tokens, new.tokens, ids(turn + 50, 40)]), limit=9)
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
