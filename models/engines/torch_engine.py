"""The in-process engine: batched sampling on ids with a key-value cache, on one thread.

Speed comes from four things: keys and values are kept across the turns of an episode, the first
prompt of a group is computed once, rows leave the batch as soon as they finish, and the
log-probs of the sampled tokens fall out of the sampling, so no second pass is needed.

Shape suffixes: B rows, N tokens of all rows, T positions, H heads, K key-value heads, D head size,
W width, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.decoder import Decoder, DecoderConfig, Layer, rotate, rotations
from models.engines.base import Completion, Request, StopReason
from models.engines.cache import KeyValueCache
from models.errors import ContextError, NonFiniteError, RequestError, StaleWeightsError
from models.policy import load_decoder, stop_tokens, weights_digest
from models.sampling import Sampling, sample, sequence_key, uniforms


class TorchEngine:
    """Samples replies with torch on the CPU; see `models.engines.base.Engine`."""

    def __init__(self) -> None:
        self._digest = ""
        self._network: _Network | None = None

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
        self._network = _Network(load_decoder(folder), stops=stop_tokens(folder))
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

    def _loaded(self) -> "_Network":
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
    network: "_Network", requests: Sequence[Request], *, sampling: Sampling, seed: int
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
        sampled = zip(*(column.tolist() for column in vars(draw).values()), strict=True)
        ended = [
            row.take(*values, stops=network.stops)
            for row, values in zip(active, sampled, strict=True)
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


def _prefill(network: "_Network", requests: list[Request]) -> Tensor:
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


class _Network:
    """A decoder prepared for sampling: fused projections and a cache."""

    def __init__(self, decoder: Decoder, *, stops: frozenset[int]) -> None:
        self.config, self.stops = decoder.config, stops
        self.cache = KeyValueCache(decoder.config)
        with torch.inference_mode():
            self.embedding = decoder.model.embed_tokens.weight.detach()
            self.head, self.norm = decoder.head.detach(), decoder.model.norm.weight.detach()
            self.layers = [
                _FusedLayer(layer, decoder.config) for layer in decoder.model.each_layer()
            ]
            self.cos, self.sin = rotations(decoder.config, decoder.config.max_context)

    def prefill(self, slots: list[int], new: list[NDArray[np.int32]], starts: list[int]) -> Tensor:
        """Feeds new tokens behind the cached ones of some slots.

        Args:
            slots: Which slots, [B].
            new: New tokens of each, at least one.
            starts: Number of cached positions of each.

        Returns:
            Logits after each slot's last token, [B, V].
        """
        counts = [len(tokens) for tokens in new]
        positions = np.concatenate(
            [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        )
        columns = np.concatenate([np.arange(count) for count in counts])
        rows = np.repeat(np.arange(len(slots)), counts)
        grid = torch.from_numpy(rows * max(counts) + columns)
        where = torch.from_numpy(positions)
        longest = int(positions.max()) + 1
        owners = torch.tensor(slots)
        first_slots = slots == list(range(len(slots)))
        owned = slice(len(slots)) if first_slots else owners  # a view where that is possible
        seen = torch.full((len(slots) * max(counts),), longest, dtype=torch.int64)
        seen[grid] = where
        visible = (torch.arange(longest) <= seen[:, None]).view(len(slots), 1, max(counts), longest)
        cos, sin = self.cos[where][:, None], self.sin[where][:, None]
        x = F.embedding(torch.from_numpy(np.concatenate(new).astype(np.int64)), self.embedding)
        for index, layer in enumerate(self.layers):
            q, k, v = layer.project(x, cos, sin)
            keys, values = self.cache.keys[index], self.cache.values[index]
            keys[owners[rows], :, where] = k
            values[owners[rows], :, where] = v
            padded = q.new_zeros(len(slots) * max(counts), *q.shape[1:]).index_copy_(0, grid, q)
            y = F.scaled_dot_product_attention(
                padded.view(len(slots), max(counts), *q.shape[1:]).transpose(1, 2),
                keys[owned, :, :longest],
                values[owned, :, :longest],
                attn_mask=visible,
                enable_gqa=q.shape[1] != k.shape[1],
            )
            x = layer.finish(x, y.transpose(1, 2).reshape(len(seen), -1)[grid])
        return self._logits(x[torch.from_numpy(np.cumsum(counts) - 1)])

    def step(self, tokens: Tensor, lengths: NDArray[np.int64]) -> Tensor:
        """Feeds one token to each of the slots 0 … B-1.

        Args:
            tokens: int64, [B].
            lengths: Number of cached positions of each slot, [B].

        Returns:
            Logits of the next token, [B, V].
        """
        positions = torch.from_numpy(lengths.copy())
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        longest = int(lengths.max()) + 1
        hidden = torch.arange(longest) > positions[:, None]
        bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        slots = torch.arange(len(tokens))
        for index, layer in enumerate(self.layers):
            q, k, v = layer.project(x, cos, sin)
            keys, values = self.cache.keys[index], self.cache.values[index]
            keys[slots, :, positions] = k
            values[slots, :, positions] = v
            y = _attend(
                q, keys[: len(tokens), :, :longest], values[: len(tokens), :, :longest], bias
            )
            x = layer.finish(x, y)
        return self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        x = F.rms_norm(x, (x.shape[-1],), self.norm, self.config.norm_epsilon)
        return F.linear(x, self.head)


def _attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attention of one query per row.

    Args:
        q: [B, H, D]
        keys: [B, K, T, D], a view of the cache.
        values: [B, K, T, D]
        bias: 0 where a position is visible, else minus infinity, [B, T].

    Returns:
        [B, H * D]
    """
    num, heads, size = q.shape
    shared = keys.shape[1]
    queries = q.view(num * shared, heads // shared, size) * size**-0.5
    scores = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2))
    scores = scores.view(num, heads, -1) + bias[:, None]
    weights = torch.softmax(scores, dim=-1).view(num * shared, heads // shared, -1)
    return torch.bmm(weights, values.flatten(0, 1)).view(num, heads * size)


class _FusedLayer:
    """A layer with its query, key and value projections in one product, and gate and up in one."""

    def __init__(self, layer: Layer, config: DecoderConfig) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.config = config
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = torch.cat([projection.weight for projection in projections])
        self.qkv_bias = (
            torch.cat([projection.bias for projection in projections]) if config.qkv_bias else None
        )
        self.out = attention.o_proj.weight.detach()
        self.gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        self.down = mlp.down_proj.weight.detach()
        self.norms = (layer.input_layernorm.weight, layer.post_attention_layernorm.weight)
        self.qk_norms = (
            (attention.q_norm.weight, attention.k_norm.weight) if config.qk_norm else None
        )

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [N, H, D], rotated keys and values [N, K, D] of hidden states [N, W]."""
        config = self.config
        size, epsilon = config.head_dim, config.norm_epsilon
        x = F.rms_norm(x, (x.shape[-1],), self.norms[0], epsilon)
        heads = F.linear(x, self.qkv, self.qkv_bias).view(x.shape[0], -1, size)
        shared = config.num_key_value_heads
        q, k, v = torch.split(heads, [config.num_heads, shared, shared], dim=1)
        if self.qk_norms is not None:
            q = F.rms_norm(q, (size,), self.qk_norms[0], epsilon)
            k = F.rms_norm(k, (size,), self.qk_norms[1], epsilon)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds attention's output and the feed-forward layer to hidden states [N, W]."""
        x = x + F.linear(attended, self.out)
        y = F.rms_norm(x, (x.shape[-1],), self.norms[1], self.config.norm_epsilon)
        gate, up = F.linear(y, self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)
