"""The in-process engine: batched sampling on ids with a key-value cache, on one thread.

Speed comes from four things: keys and values are kept across the turns of an episode, the first
prompt of a group is computed once, rows leave the batch as soon as they finish, and the
log-probs of the sampled tokens fall out of the sampling, so no second pass is needed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.engines.base import Completion, Request, StopReason
from models.engines.network import SamplingNetwork
from models.errors import ContextError, NonFiniteError, RequestError, StaleWeightsError
from models.folder import stop_tokens, weights_digest
from models.policy import load_decoder
from models.sampling import sample, sequence_key, uniforms
from models.settings import Sampling


class TorchEngine:
    """Samples replies with torch on the CPU; see `models.engines.base.Engine`."""

    def __init__(self) -> None:
        self._digest = ""
        self._network: SamplingNetwork | None = None

    @property
    def weight_digest(self) -> str:
        """Digest of the loaded weights; empty before the first load."""
        return self._digest

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and reply together."""
        return self._loaded().config.max_context

    def load(self, folder: Path, *, digest: str) -> None:
        """Loads a policy and forgets every cache.

        Raises:
            StaleWeightsError: The folder's weights have another digest (L9).
        """
        found = weights_digest(folder)
        if found != digest:
            raise StaleWeightsError(
                f"the weights in `{folder}` have digest {found[:12]}…, asked was {digest[:12]}…"
            )
        self._network = SamplingNetwork(load_decoder(folder), stops=stop_tokens(folder))
        self._digest = digest

    def generate(
        self, requests: Sequence[Request], *, sampling: Sampling, seed: int
    ) -> list[Completion]:
        """Samples one reply per request, in the order of the requests.

        Args:
            requests: Keys must differ.
            sampling: The distribution.
            seed: With the key and the position it determines each draw.

        Raises:
            RequestError: An empty prompt or reply, or a key asked twice.
            ContextError: A prompt and its reply do not fit into the policy's context.
            NonFiniteError: The weights give scores that are no numbers.
        """
        network = self._loaded()
        _check(requests, max_context=network.config.max_context)
        with torch.inference_mode():
            return _generate(network, requests, sampling=sampling, seed=seed)

    def release(self, keys: Iterable[str]) -> None:
        """Forgets the caches of sequences."""
        with torch.inference_mode():
            self._loaded().cache.release(keys)

    def _loaded(self) -> SamplingNetwork:
        if self._network is None:
            raise StaleWeightsError("the engine has no weights yet\nhint: call `load` first")
        return self._network


def _check(requests: Sequence[Request], *, max_context: int) -> None:
    seen: set[str] = set()
    for request in requests:
        prompt, reply = len(request.tokens), request.max_new_tokens
        if request.key in seen:
            raise RequestError(f"two requests for sequence `{request.key}`\nhint: ask once a turn")
        seen.add(request.key)
        if prompt < 1 or reply < 1:
            raise RequestError(
                f"sequence `{request.key}`: {prompt} prompt tokens and at most {reply} new ones\n"
                "hint: both must be at least 1"
            )
        if prompt + reply > max_context:
            raise ContextError(
                f"sequence `{request.key}`: {prompt} prompt tokens and up to {reply} new ones "
                f"exceed the context of {max_context}\nhint: shorter prompts or replies"
            )


@dataclass
class _Row:
    """One reply being sampled."""

    request: Request
    noise_key: np.uint64
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    keep_mass: list[float] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def take(self, token: int, logprob: float, keep_mass: float, *, stops: frozenset[int]) -> bool:
        """Appends a sampled token; says whether the reply has ended."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.keep_mass.append(keep_mass)
        if token in stops:
            self.stop_reason = StopReason.STOP_TOKEN
        elif len(self.tokens) == self.request.max_new_tokens:
            self.stop_reason = StopReason.LENGTH
        return self.stop_reason is not None


def _generate(
    network: SamplingNetwork, requests: Sequence[Request], *, sampling: Sampling, seed: int
) -> list[Completion]:
    if not requests:
        return []
    rows = {request.key: _Row(request, sequence_key(request.key)) for request in requests}
    cache = network.cache
    length = max(len(request.tokens) + request.max_new_tokens for request in requests)
    active = [rows[name] for name in cache.place(list(rows), length=length)]
    logits = _prefill(network, [row.request for row in active])
    noise_keys = np.array([row.noise_key for row in active])
    while active:
        num = len(active)
        positions = cache.lengths[:num].copy()
        draws = torch.from_numpy(uniforms(seed, noise_keys, positions))
        draw = sample(logits, draws, sampling)
        tokens = draw.tokens
        columns = (draw.tokens.tolist(), draw.logprobs.tolist(), draw.keep_mass.tolist())
        ended = [
            row.take(*values, stops=network.stops)
            for row, *values in zip(active, *columns, strict=True)
        ]
        for slot in np.flatnonzero(ended)[::-1].tolist():
            last = len(active) - 1
            cache.swap(slot, last)
            for column in (tokens, noise_keys):
                column[slot] = column[last]
            active[slot] = active[last]
            active.pop()
            tokens, noise_keys = tokens[:last], noise_keys[:last]
        if active:
            logits = network.step(tokens, cache.lengths[: len(active)])
            cache.lengths[: len(active)] += 1
    for name, row in rows.items():
        fed = np.array(row.tokens[:-1], dtype=np.int32)  # the last token was never fed
        cache.remember(name, np.concatenate([row.request.tokens, fed]))
    return [_completion(row) for row in rows.values()]


def _completion(row: _Row) -> Completion:
    assert row.stop_reason is not None, "the loop ends when every reply has"  # noqa: S101
    logprobs = np.array(row.logprobs, dtype=np.float32)
    if not np.isfinite(logprobs).all():
        raise NonFiniteError(
            f"sequence `{row.request.key}`: a sampled token has log-prob "
            f"{logprobs[~np.isfinite(logprobs)][0]}\n"
            "hint: the policy's weights are broken; go back to an earlier policy"
        )
    return Completion(
        key=row.request.key,
        tokens=np.array(row.tokens, dtype=np.int32),
        logprobs=logprobs,
        keep_mass=np.array(row.keep_mass, dtype=np.float32),
        stop_reason=row.stop_reason,
    )


def _prefill(network: SamplingNetwork, requests: list[Request]) -> Tensor:
    """Feeds what is not cached of each prompt; logits of the next token, [B, V]."""
    cache = network.cache
    starts = [cache.keep_prefix(slot, item.tokens) for slot, item in enumerate(requests)]
    leader: dict[tuple[str, bytes], int] = {}
    follows = [
        leader.setdefault((item.group, item.tokens.tobytes()), slot) if start == 0 else slot
        for slot, (item, start) in enumerate(zip(requests, starts, strict=True))
    ]
    fed = [slot for slot, first in enumerate(follows) if slot == first]
    new = [requests[slot].tokens[starts[slot] :] for slot in fed]
    logits = network.prefill(fed, new, [starts[slot] for slot in fed])
    for slot in fed:
        cache.lengths[slot] = len(requests[slot].tokens)
        if followers := [other for other, first in enumerate(follows) if first == slot != other]:
            cache.copy(slot, followers)
    place = {slot: index for index, slot in enumerate(fed)}
    return logits[[place[first] for first in follows]]
