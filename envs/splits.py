"""Which split an instance belongs to: a stable hash of what the instance is, never of its seed."""

from collections.abc import Sequence

from envs.base import Split
from envs.seeding import stable_hash

EVALUATION_SHARE = 5
"""One instance in this many is held out for evaluation."""


def split_of(key: str) -> Split:
    """Returns the split of a generated instance, named by its canonical text `key`."""
    held_out = stable_hash("split", key) % EVALUATION_SHARE == 0
    return Split.EVALUATION if held_out else Split.TRAIN


def members(keys: Sequence[str], *, split: Split) -> tuple[int, ...]:
    """Returns the positions of `keys` that belong to `split`, for a given finite collection.

    Equal keys go to the same side. Of n distinct keys the max(1, n // 5) with the smallest hash are
    held out, so that a small collection has evaluation instances too; a single one is for training.
    """
    ranked = sorted(set(keys), key=lambda key: (stable_hash("split", key), key))
    num_held_out = max(1, len(ranked) // EVALUATION_SHARE) if len(ranked) > 1 else 0
    held_out = frozenset(ranked[:num_held_out])
    wanted = split is Split.EVALUATION
    return tuple(index for index, key in enumerate(keys) if (key in held_out) is wanted)
