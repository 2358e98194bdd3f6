"""A decoder of the Llama, Qwen2 and Qwen3 family, with Hugging Face's parameter names.

It exists for what `transformers` does not do on small machines: a packed forward without padding in
the linear layers (`hidden`), and a lean decode step over a preallocated cache (`models.engines`).
A policy folder stays a Hugging Face folder: the same weights give the same logits there.

Shape suffixes: N tokens of all sequences, B sequences, T positions, H heads, K key-value heads,
D head size, W width, V vocabulary.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.errors import PolicyFolderError, UnsupportedArchitectureError

FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder, from the `config.json` of a Hugging Face folder."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    norm_epsilon: float
    tied: bool
    max_context: int

    @property
    def qkv_bias(self) -> bool:
        """Whether the query, key and value projections have a bias."""
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head."""
        return self.model_type == "qwen3"

    @classmethod
    def from_folder(cls, folder: Path) -> "DecoderConfig":
        """Reads `config.json` of a policy folder.

        Raises:
            PolicyFolderError: There is none.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise PolicyFolderError(
                f"`{folder}` has no `config.json`\nhint: give a folder in Hugging Face form"
            )
        return cls.from_dict(json.loads(path.read_text()))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "DecoderConfig":
        """Takes what matters from a Hugging Face configuration.

        Raises:
            UnsupportedArchitectureError: Another family, or a variant that this decoder lacks.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise UnsupportedArchitectureError(
                f"`model_type` is `{family}`\nhint: supported are {', '.join(FAMILIES)}"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", "default") != "default":
            raise UnsupportedArchitectureError(
                f"rotary embedding of type `{rope['rope_type']}`\nhint: supported is `default`"
            )
        if (
            config.get("attention_bias")
            or config.get("mlp_bias")
            or config.get("use_sliding_window")
        ):
            raise UnsupportedArchitectureError(
                "attention_bias, mlp_bias or a sliding window is set\nhint: supported is none"
            )
        if config.get("hidden_act", "silu") != "silu":
            raise UnsupportedArchitectureError(
                f"`hidden_act` is `{config['hidden_act']}`\nhint: supported is `silu`"
            )
        heads = config["num_attention_heads"]
        return cls(
            model_type=family,
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            norm_epsilon=config["rms_norm_eps"],
            tied=bool(config.get("tie_word_embeddings", False)),
            max_context=config["max_position_embeddings"],
        )


class RMSNorm(nn.Module):
    """Root-mean-square normalisation of the last dimension."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x`, shape [..., size]."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


class Attention(nn.Module):
    """Projections of one attention layer; the product itself depends on packing or cache."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, size = config.hidden_size, config.head_dim
        self.config = config
        bias = config.qkv_bias
        self.q_proj = nn.Linear(width, config.num_heads * size, bias=bias)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=bias)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * size, width, bias=False)
        if config.qk_norm:
            self.q_norm = RMSNorm(size, config.norm_epsilon)
            self.k_norm = RMSNorm(size, config.norm_epsilon)


class FeedForward(nn.Module):
    """Gated feed-forward layer (SwiGLU)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `x`, shape [..., W], to the same shape."""
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)


class Trunk(nn.Module):
    """Embedding, layers and final normalisation: what Hugging Face calls `model`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_epsilon)

    def each_layer(self) -> Iterator[Layer]:
        """The layers, in order, with their type."""
        return (cast(Layer, layer) for layer in self.layers)


class Decoder(nn.Module):
    """A causal language model.

    Args:
        config: Its shape.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        if not config.tied:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def head(self) -> Tensor:
        """Weight of the language-model head, [V, W]."""
        return self.model.embed_tokens.weight if self.config.tied else self.lm_head.weight

    def hidden(self, tokens: Tensor, lengths: Sequence[int], *, at: Tensor | None = None) -> Tensor:
        """Last hidden states of packed sequences; attention never crosses sequences.

        Args:
            tokens: Ids of all sequences one after another, int64, [N].
            lengths: Length of each sequence; their sum is N.
            at: Positions whose states are wanted, int64, [M]; None wants all. What follows the last
                layer's attention runs on these alone, as no other position needs it.

        Returns:
            [M, W], or [N, W] when all are wanted.
        """
        layout = Packing(lengths, self.config)
        x = self.model.embed_tokens(tokens)
        for index, layer in enumerate(self.model.each_layer()):
            seen = _packed_attention(layer.self_attn, layer.input_layernorm(x), layout)
            if at is not None and index == self.config.num_layers - 1:
                x, seen = x.index_select(0, at), seen.index_select(0, at)
            x = x + layer.self_attn.o_proj(seen)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        y: Tensor = self.model.norm(x)
        return y

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, [..., V], from hidden states, [..., W]."""
        return F.linear(hidden, self.head)


class Packing:
    """Where each packed token stands: its row and position, and the rotation of its position.

    Args:
        lengths: Length of each sequence.
        config: Shape of the decoder.
    """

    def __init__(self, lengths: Sequence[int], config: DecoderConfig) -> None:
        self.rows, self.longest = len(lengths), max(lengths, default=0)
        self.even = all(length == self.longest for length in lengths)
        counts = torch.tensor(list(lengths))
        positions = torch.cat([torch.arange(length) for length in lengths])
        rows = torch.repeat_interleave(torch.arange(self.rows), counts)
        self.places = rows * self.longest + positions
        cos, sin = rotations(config, self.longest)
        self.cos, self.sin = cos[positions][:, None], sin[positions][:, None]

    def pad(self, x: Tensor) -> Tensor:
        """[N, H, D] to [B, H, T, D]."""
        if not self.even:
            grid = x.new_zeros(self.rows * self.longest, *x.shape[1:])
            x = grid.index_copy(0, self.places, x)
        return x.view(self.rows, self.longest, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        """[B, H, T, D] to [N, H * D]."""
        x = x.transpose(1, 2).reshape(self.rows * self.longest, -1)
        return x if self.even else x.index_select(0, self.places)


def rotations(config: DecoderConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, float32, [length, D] each (RoFormer, 3.2)."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), config.rope_theta**-half)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates halves of the last dimension; `cos` and `sin` broadcast to `x`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _packed_attention(layer: Attention, x: Tensor, layout: Packing) -> Tensor:
    """What each token takes from its sequence, before the output projection, [N, H * D]."""
    config = layer.config
    q = layer.q_proj(x).unflatten(-1, (config.num_heads, config.head_dim))
    k = layer.k_proj(x).unflatten(-1, (config.num_key_value_heads, config.head_dim))
    v = layer.v_proj(x).unflatten(-1, (config.num_key_value_heads, config.head_dim))
    if config.qk_norm:
        q, k = layer.q_norm(q), layer.k_norm(k)
    q, k = rotate(q, layout.cos, layout.sin), rotate(k, layout.cos, layout.sin)
    y = F.scaled_dot_product_attention(
        layout.pad(q),
        layout.pad(k),
        layout.pad(v),
        is_causal=True,
        enable_gqa=config.num_heads != config.num_key_value_heads,
    )
    return layout.unpad(y)
