"""Policy folders as stages see them: identity, version, and adoption of a folder from outside."""

import json
import shutil
from pathlib import Path

from models.nano import NanoSettings
from pydantic import BaseModel, ConfigDict, Field

from tasks.digest import digest_file
from tasks.errors import SettingsError
from tasks.store import Reference, Store

WEIGHTS = "model.safetensors"
STATE = Path("trainer") / "state.json"


class PolicySettings(BaseModel):
    """Where the first policy comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(
        default=None,
        description="Folder of a policy in Hugging Face form; without one a nano policy is made.",
    )
    nano: NanoSettings = Field(default=NanoSettings(), description="Shape of the nano policy.")


def weight_digest(folder: Path) -> str:
    """Digest of a policy's weights: what each rollout is stamped with (L9)."""
    return digest_file(folder / WEIGHTS)


def policy_version(folder: Path) -> int:
    """Number of updates behind a policy; 0 for one that was never updated here."""
    state = folder / STATE
    return int(json.loads(state.read_text())["version"]) if state.exists() else 0


def adopt_policy(path: Path, *, store: Store) -> Reference:
    """Copies a policy folder from outside into the store.

    Raises:
        SettingsError: The folder is missing or is no policy in Hugging Face form.
    """
    needed = ("config.json", WEIGHTS, "tokenizer.json")
    missing = [name for name in needed if not (path / name).is_file()]
    if missing:
        state = "is not a folder" if not path.is_dir() else f"has no {', '.join(missing)}"
        raise SettingsError(
            f"the policy `{path}` {state}\n"
            "hint: give the folder of a causal language model in Hugging Face form "
            f"({', '.join(needed)}), e.g. one below `checkpoints/`"
        )
    with store.workspace() as folder:
        shutil.copytree(path, folder / "policy")
        return store.put(folder / "policy")
