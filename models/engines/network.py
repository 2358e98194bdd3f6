"""A decoder prepared for sampling: few large products per step, over a key-value cache.

Shape suffixes: B rows, N tokens of all rows, T positions, H heads, K key-value heads, D head size,
W width, V vocabulary.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from models.decoder import Decoder, DecoderConfig, Layer, rotate, rotations
from models.engines.cache import KeyValueCache


class SamplingNetwork:
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
        last = torch.from_numpy(np.cumsum(counts) - 1)
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
            y = y.transpose(1, 2).reshape(len(seen), -1)[grid]
            if index == len(self.layers) - 1:  # nothing but the last token's state is needed now
                x, y = x[last], y[last]
            x = layer.finish(x, y)
        return self._logits(x)

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
