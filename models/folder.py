"""Layout of a policy folder, and what can be read from it without torch.

`config.json`, `model.safetensors`, `tokenizer.json`, `tokenizer_config.json`,
`generation_config.json` and the chat template are Hugging Face's; `critic/` and `trainer/` are ours
and ignored by other programs.
"""

import hashlib
import json
from pathlib import Path

from models.errors import PolicyFolderError

WEIGHTS = "model.safetensors"
CRITIC_WEIGHTS = Path("critic") / "model.safetensors"
OPTIMISER = Path("trainer") / "optimizer.safetensors"
STATE = Path("trainer") / "state.json"


def weights_digest(folder: Path) -> str:
    """SHA-256 of `model.safetensors`: the identity of a policy's weights."""
    with (folder / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stop_tokens(folder: Path) -> frozenset[int]:
    """Ids that end a reply, from `generation_config.json` or `config.json`.

    Raises:
        PolicyFolderError: Neither file names one.
    """
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        found = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    raise PolicyFolderError(
        f"`{folder}` names no stop token\nhint: set `eos_token_id` in generation_config.json"
    )


def write_json(path: Path, value: object) -> None:
    """Writes JSON with sorted keys, the same bytes for equal values."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
