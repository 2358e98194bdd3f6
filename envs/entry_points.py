"""Objects named by import path, `package.module:name`: a user's own environments and rewards."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from envs.errors import EntryPointError

PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_entry_point(text: str) -> bool:
    """Whether a text has the form `package.module:name`."""
    return PATTERN.fullmatch(text) is not None


def load_entry_point(text: str) -> Any:
    """Imports the object that a path names; the current folder is searched as well.

    Raises:
        EntryPointError: Not of the form `package.module:name`, no such module, no such name.
    """
    if not is_entry_point(text):
        raise EntryPointError(f"`{text}` is no import path\nhint: write `package.module:name`")
    module_name, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise EntryPointError(
            f"`{text}`: {error}\n"
            "hint: start the command in the folder that holds the package, or install the package"
        ) from error
    if not hasattr(module, name):
        raise EntryPointError(
            f"`{text}`: the module `{module_name}` has no `{name}`\nhint: check the spelling"
        )
    return getattr(module, name)
