"""Key-value cache of the torch engine: one slot per sequence, kept across its turns.

The sequences being decoded occupy slots 0 … B-1, so that every step works on views and copies no
keys; a sequence that finishes trades places with the last one that is still active.

Shape suffixes: L layers, S slots, K key-value heads, T positions, D head size.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from models.decoder import DecoderConfig

POSITION_STEP = 64
SLOT_STEP = 16


class KeyValueCache:
    """Cached keys and values of sequences.

    Attributes:
        keys: [L, S, K, T, D]
        values: [L, S, K, T, D]
        lengths: Number of cached positions of each slot, int64, [S].
    """

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        shape = (config.num_layers, 0, config.num_key_value_heads, 0, config.head_dim)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)
        self.lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._ids: list[NDArray[np.int32]] = []
        self._names: list[str] = []
        self._slot: dict[str, int] = {}

    @property
    def num_sequences(self) -> int:
        """Number of sequences that hold a slot."""
        return len(self._names)

    def place(self, names: list[str], *, length: int) -> list[str]:
        """Gathers the sequences in the first slots, with room for `length` positions.

        Those that are there already stay where they are: moving keys costs more than any order is
        worth.

        Returns:
            The names in the order of their slots.
        """
        for name in names:
            if name not in self._slot:
                self._slot[name] = len(self._names)
                self._names.append(name)
                self._ids.append(np.empty(0, dtype=np.int32))
        self._grow(slots=len(self._names), positions=length)
        wanted, num = set(names), len(names)
        free = [slot for slot, name in enumerate(self._names[:num]) if name not in wanted]
        strays = [name for name in names if self._slot[name] >= num]
        for slot, name in zip(free, strays, strict=True):
            self.swap(slot, self._slot[name])
        return self._names[:num]

    def swap(self, first: int, second: int) -> None:
        """Exchanges two slots."""
        if first == second:
            return
        used = int(max(self.lengths[first], self.lengths[second]))
        for cache in (self.keys, self.values):
            moved = cache[:, first, :, :used].clone()
            cache[:, first, :, :used] = cache[:, second, :, :used]
            cache[:, second, :, :used] = moved
        self.lengths[[first, second]] = self.lengths[[second, first]]
        self._ids[first], self._ids[second] = self._ids[second], self._ids[first]
        names = self._names
        names[first], names[second] = names[second], names[first]
        self._slot[names[first]], self._slot[names[second]] = first, second

    def copy(self, source: int, targets: list[int]) -> None:
        """Copies a slot's positions to others."""
        used = int(self.lengths[source])
        for cache in (self.keys, self.values):
            cache[:, targets, :, :used] = cache[:, source : source + 1, :, :used]
        for target in targets:
            self.lengths[target] = used
            self._ids[target] = self._ids[source]

    def keep_prefix(self, slot: int, tokens: NDArray[np.int32]) -> int:
        """Forgets cached positions from the first one that differs from `tokens`.

        The last token is never taken from the cache: its hidden state is needed.

        Returns:
            Number of positions that stay cached.
        """
        cached = self._ids[slot][: self.lengths[slot]]
        limit = min(len(cached), len(tokens) - 1)
        different = np.flatnonzero(cached[:limit] != tokens[:limit])
        kept = int(different[0]) if different.size else limit
        self.lengths[slot] = kept
        self._ids[slot] = cached[:kept]  # what follows is overwritten, even if sampling fails
        return kept

    def remember(self, name: str, tokens: NDArray[np.int32]) -> None:
        """Notes the ids behind a sequence's cached positions."""
        self._ids[self._slot[name]] = tokens

    def release(self, names: Iterable[str]) -> None:
        """Frees the slots of sequences."""
        for name in names:
            if name not in self._slot:
                continue
            last = len(self._names) - 1
            self.swap(self._slot[name], last)
            del self._slot[name]
            self._names.pop()
            self._ids.pop()
            self.lengths[last] = 0

    def _grow(self, *, slots: int, positions: int) -> None:
        _, old_slots, heads, old_positions, size = self.keys.shape
        if slots <= old_slots and positions <= old_positions:
            return
        slots = max(old_slots, _round_up(slots, SLOT_STEP))
        positions = max(old_positions, _round_up(positions, POSITION_STEP))
        shape = (self._config.num_layers, slots, heads, positions, size)
        for name in ("keys", "values"):
            larger = torch.zeros(shape)
            larger[:, :old_slots, :, :old_positions] = getattr(self, name)
            setattr(self, name, larger)
        self.lengths = np.pad(self.lengths, (0, slots - old_slots))


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
