"""Errors of the environments: one family, each also the matching standard error.

Every text names the thing, the value found and what is allowed, and ends with a `hint:` line.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class EnvsError(Exception):
    """Base of every error that `envs` raises on purpose."""


class UnknownTagError(EnvsError, KeyError):
    """A tag that is not in the table."""

    def __init__(self, name: str, *, known: Iterable[str]):
        self.name = name
        known = sorted(known)
        close = get_close_matches(name, known, n=1, cutoff=0.4)
        guess = f"did you mean `{close[0]}`? " if close else ""
        self.message = f"unknown tag `{name}`\nhint: {guess}known tags: {', '.join(known)}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class TagSettingsError(EnvsError, ValueError):
    """A tag with a wrong budget, or settings that its environment does not accept."""


class UnsatisfiableSettingsError(EnvsError, RuntimeError):
    """No instance with these settings was found within the bounded number of draws."""


class LevelFileError(EnvsError, ValueError):
    """A level file that cannot be used; names the file, the line and the reason."""

    def __init__(self, reason: str, *, file: str, line: int, hint: str):
        self.file = file
        self.line = line
        self.reason = reason
        super().__init__(f"{file}:{line}: {reason}\nhint: {hint}")


class SolverLimitError(EnvsError, RuntimeError):
    """A search that met its bound on states before it found a plan or proved there is none."""


class EpisodeOverError(EnvsError, RuntimeError):
    """A step or a reply after the end of the episode, or before its start."""


class ContractError(EnvsError, AssertionError):
    """An environment that breaks the contract shared by all; names the clause."""


class ResetOptionsError(EnvsError, ValueError):
    """Options given to `reset` that the contract does not know."""


class EpisodeFailure(EnvsError, RuntimeError):
    """An environment, or a server behind it, failed during an episode: the episode is errored."""


class EntryPointError(EnvsError, ImportError):
    """An import path that names no object."""

    def __str__(self) -> str:
        return str(self.args[0])


class NoSolverError(EnvsError, NotImplementedError):
    """An environment without a solver or scripted player was asked for one's move."""
