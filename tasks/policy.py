"""Policy folders as stages see them: identity, version, and adoption of a folder from outside."""

import json
import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from models.folder import STATE, WEIGHTS, write_json
from models.settings import NanoSettings
from tasks.environment import EnvironmentSettings
from tasks.errors import SettingsError
from tasks.store import Reference, Store


class PolicySettings(BaseModel):
    """Where the first policy comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = Field(
        default=None,
        description="Folder of a policy in Hugging Face form; without one a nano policy is made.",
    )
    nano: NanoSettings = Field(default=NanoSettings(), description="Shape of the nano policy.")


def write_state(folder: Path, *, version: int, environment: EnvironmentSettings) -> None:
    """Notes in a policy folder how many updates are behind it and where it learned to play."""
    (folder / STATE.parent).mkdir()
    facts = {"version": version, "environment": environment.model_dump(mode="json")}
    write_json(folder / STATE, facts)


def policy_environment(folder: Path) -> EnvironmentSettings | None:
    """The environment that a policy was trained on; None for one from outside."""
    state = folder / STATE
    facts = json.loads(state.read_text()) if state.exists() else {}
    found = facts.get("environment")
    return None if found is None else EnvironmentSettings.model_validate(found)


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
