"""Frozen lakes: generation, Gymnasium's `desc` lists, kinds of map, and value iteration."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np

from envs.grids import canonical

DISCOUNT = 0.99
_TOLERANCE = 1e-12


class Kind(StrEnum):
    """How much the holes matter between start and goal.

    CLEAR: the rectangle that start and goal span holds none; heading for the goal is safe.
    RISKY: it holds some, yet a direct way (no step away from the goal) exists.
    DETOUR: every direct way is broken; the player must step away from the goal.
    """

    CLEAR = "clear"
    RISKY = "risky"
    DETOUR = "detour"


@dataclass(frozen=True, slots=True)
class Lake:
    """A map: height x width cells as `F` (ice) and `H` (hole), start and goal as cell numbers."""

    height: int
    width: int
    cells: str
    start: int
    goal: int

    def text(self) -> str:
        """Returns the cells in Gymnasium's signs `S F H G`, row by row."""
        signs = list(self.cells)
        signs[self.start], signs[self.goal] = "S", "G"
        return "".join(signs)

    def key(self) -> str:
        """Returns one text for this lake and its images under rotation and reflection."""
        return canonical(self.text(), height=self.height, width=self.width)

    def kind(self) -> Kind:
        """Returns the kind of this lake."""
        (row, column), (goal_row, goal_column) = (
            divmod(cell, self.width) for cell in (self.start, self.goal)
        )
        rows = range(min(row, goal_row), max(row, goal_row) + 1)
        columns = range(min(column, goal_column), max(column, goal_column) + 1)
        if all(self.cells[r * self.width + c] != "H" for r in rows for c in columns):
            return Kind.CLEAR
        direct = abs(row - goal_row) + abs(column - goal_column)
        return Kind.RISKY if self.distance() == direct else Kind.DETOUR

    def distance(self) -> int | None:
        """Returns the fewest steps over ice from start to goal; None when there is no way."""
        table = neighbours(self.height, self.width)
        steps = {self.start: 0}
        frontier = [self.start]
        for cell in frontier:  # grows while it is read: a queue
            if cell == self.goal:
                return steps[cell]
            for following in table[cell]:
                if following not in steps and self.cells[following] != "H":
                    steps[following] = steps[cell] + 1
                    frontier.append(following)
        return None


@lru_cache(maxsize=64)
def neighbours(height: int, width: int) -> tuple[tuple[int, int, int, int], ...]:
    """Returns for each cell where Left, Down, Right, Up lead; the edge stops the player."""
    return tuple(
        (
            row * width + max(column - 1, 0),
            min(row + 1, height - 1) * width + column,
            row * width + min(column + 1, width - 1),
            max(row - 1, 0) * width + column,
        )
        for row in range(height)
        for column in range(width)
    )


def draw_lake(draw: random.Random, *, size: int, ice_probability: float) -> Lake | None:
    """Draws a square lake; None when its start and goal are equal or not joined by ice."""
    uniform = draw.random
    num_cells = size * size
    cells = ["F" if uniform() < ice_probability else "H" for _ in range(num_cells)]
    start, goal = int(uniform() * num_cells), int(uniform() * num_cells)
    if start == goal:
        return None
    cells[start] = cells[goal] = "F"
    lake = Lake(height=size, width=size, cells="".join(cells), start=start, goal=goal)
    return lake if lake.distance() is not None else None


def read_lake(rows: Sequence[str], *, index: int = 0) -> Lake:
    """Reads one of Gymnasium's `desc` lists.

    Args:
        rows: Text rows of `S F H G`, one `S` and one `G`.
        index: Position in the user's list of maps, for the message.

    Raises:
        ValueError: The map is malformed or has no way from start to goal.
    """
    width = len(rows[0]) if rows else 0
    if not width:
        raise ValueError(f"map {index} is empty: give rows of `S F H G`")
    for number, row in enumerate(rows):
        if len(row) != width:
            raise ValueError(
                f"map {index}, row {number} has {len(row)} cells, row 0 {width}: make them equal"
            )
        if unknown := sorted(set(row) - set("SFHG")):
            raise ValueError(
                f"map {index}, row {number} holds `{unknown[0]}`: allowed are `S F H G`"
            )
    text = "".join(rows)
    for sign, name in (("S", "start"), ("G", "goal")):
        if text.count(sign) != 1:
            raise ValueError(
                f"map {index} has {text.count(sign)} cells `{sign}` ({name}): exactly 1 is allowed"
            )
    lake = Lake(
        height=len(rows),
        width=width,
        cells=text.replace("S", "F").replace("G", "F"),
        start=text.index("S"),
        goal=text.index("G"),
    )
    if lake.distance() is None:
        raise ValueError(f"map {index} has no way over ice from `S` to `G`: remove a hole")
    return lake


@lru_cache(maxsize=4096)
def optimal_policy(lake: Lake, *, intended_probability: float) -> tuple[int, ...]:
    """Solves the lake by value iteration, discounted so that shorter ways are better.

    V(c) = max_a sum over directions d in {a - 1, a, a + 1} of p(d | a) * 0.99 * V(next(c, d)), with
    V(goal) = 1 and V(hole) = 0, iterated until no value changes by more than 1e-12.

    Args:
        lake: The map.
        intended_probability: Probability s of the intended direction; each perpendicular one has
            (1 - s) / 2.

    Returns:
        For each cell the best action number (Left, Down, Right, Up = 0, 1, 2, 3).
    """
    table = np.array(neighbours(lake.height, lake.width))  # [cells, 4]
    turned = np.stack([np.roll(table, shift, axis=1) for shift in (1, 0, -1)])  # [3, cells, 4]
    aside = (1 - intended_probability) / 2
    weights = DISCOUNT * np.array([aside, intended_probability, aside])
    holes = np.array([sign == "H" for sign in lake.cells])
    values = np.zeros(len(lake.cells))
    values[lake.goal] = 1.0
    while True:
        action_values = np.tensordot(weights, values[turned], axes=1)  # [cells, 4]
        updated = action_values.max(axis=1)
        updated[holes] = 0.0
        updated[lake.goal] = 1.0
        if np.abs(updated - values).max() <= _TOLERANCE:
            break
        values = updated
    best = action_values >= action_values.max(axis=1, keepdims=True) - 1e-9  # first of equals
    return tuple(int(action) for action in best.argmax(axis=1))
