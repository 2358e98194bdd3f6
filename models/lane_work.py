"""How computations here hand parts of their work to lanes, without knowing who runs them."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Payload = TypeVar("Payload")
Result = TypeVar("Result")


class Run(Protocol):
    """Runs a function over the lanes' payloads; results come back in the payloads' order."""

    def __call__(
        self, function: Callable[[Payload], Result], payloads: Sequence[Payload], /
    ) -> list[Result]:
        """`[function(payload) for payload in payloads]`, wherever it is computed."""


def run_here(function: Callable[[Payload], Result], payloads: Sequence[Payload], /) -> list[Result]:
    """Runs all lanes one after another in this process."""
    return [function(payload) for payload in payloads]
