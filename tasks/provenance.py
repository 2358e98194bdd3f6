"""Where a result came from: commit, dirty flag, package versions, machine."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TypedDict

from tasks.code import ROOT

PACKAGES = ("starpo", "torch", "transformers", "tokenizers", "prefect", "pyarrow", "numpy")

RESULTS = (":!results", ":!dvc.lock")
"""What runs write into the checkout: changed results do not make the code another one."""


class Provenance(TypedDict):
    """What is written beside every result.

    Attributes:
        commit: Of the checkout that the code lies in.
        dirty: Whether anything but results differs from the commit.
    """

    commit: str
    dirty: bool
    packages: dict[str, str]
    machine: str


@cache
def provenance() -> Provenance:
    """The provenance of this process; read once."""
    commit = _git("rev-parse", "HEAD")
    return Provenance(
        commit=commit or "none",
        dirty=bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *RESULTS)),
        packages={name: _version(name) for name in PACKAGES},
        machine=f"{platform.machine()} {platform.system()} Python {platform.python_version()}",
    )


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed command
    except FileNotFoundError:  # no git on this machine: a wheel was installed
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def accelerator() -> str:
    """What torch computes on, in words."""
    import torch  # noqa: PLC0415 - takes a second, and only `starpo doctor` asks

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, {os.cpu_count()} cores, torch {torch.__version__}"
