"""Digests: of bytes, files, folders and JSON values. All are SHA-256 in lower-case hex."""

import hashlib
import json
from pathlib import Path
from typing import Any


def digest_bytes(data: bytes) -> str:
    """SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_json(value: Any) -> str:
    """Digest of a JSON value; equal values have equal digests in every process.

    Example:
        >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
        True
    """
    return digest_bytes(canonical_json(value).encode())


def digest_file(path: Path) -> str:
    """Digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_folder(path: Path) -> str:
    """Digest of a folder: of the relative names and digests of all its files."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return digest_json([[file.relative_to(path).as_posix(), digest_file(file)] for file in files])


def digest_path(path: Path) -> str:
    """Digest of a file or a folder."""
    return digest_folder(path) if path.is_dir() else digest_file(path)


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from named parts, the same in every process and on every machine.

    Example:
        >>> derive_seed(0, "rollout", 3) == derive_seed(0, "rollout", 3)
        True
    """
    return int(digest_json(list(parts))[:16], 16) >> 1
