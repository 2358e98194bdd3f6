"""Private random generators, each a function of its name and numbers alone.

Nothing here reads or moves the global states of `random`, `numpy` or `torch`, and nothing depends
on the salted built-in `hash`, so the same parts give the same draws in every process.
"""

import hashlib
import random


def stable_hash(*parts: str | int) -> int:
    """Returns a 64-bit number that depends on the parts alone, the same on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def generator(*parts: str | int) -> random.Random:
    """Returns a fresh generator named by its parts, for instance `("sokoban", "train", 7)`."""
    return random.Random(stable_hash(*parts))  # noqa: S311 - simulation, not secrets
