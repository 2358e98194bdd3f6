"""How computations here hand parts of their work to lanes, without knowing who runs them."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Payload = TypeVar("Payload")
Result = TypeVar("Result")
Item = TypeVar("Item")


class Run(Protocol):
    """Runs a function over the lanes' payloads; results come back in the payloads' order."""

    def __call__(
        self, function: Callable[[Payload], Result], payloads: Sequence[Payload], /
    ) -> list[Result]:
        """`[function(payload) for payload in payloads]`, wherever it is computed."""


def run_here(function: Callable[[Payload], Result], payloads: Sequence[Payload], /) -> list[Result]:
    """Runs all lanes one after another in this process."""
    return [function(payload) for payload in payloads]


def deal(items: Sequence[Item], num_lanes: int) -> list[list[Item]]:
    """Deals items to lanes in turn; no lane is empty, so there may be fewer than asked for."""
    return [list(items[lane::num_lanes]) for lane in range(min(num_lanes, len(items)))]


def undeal(lanes: Sequence[Sequence[Item]]) -> list[Item]:
    """The items of `deal`ed lanes in their first order."""
    lengths = [len(lane) for lane in lanes]
    return [lanes[i % len(lanes)][i // len(lanes)] for i in range(sum(lengths))]
