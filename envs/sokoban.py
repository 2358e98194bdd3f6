"""Sokoban: push every box onto a target."""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from envs.base import ObservationFormat, Split, TextEnvironment
from envs.grids import paint
from envs.seeding import generator
from envs.sokoban_instances import SokobanSettings, draw_level
from envs.sokoban_levels import Level, cells_of
from envs.sokoban_solver import solve

ACTION_NAMES = ("Up", "Down", "Left", "Right")
STEP_REWARD = -0.1
TARGET_REWARD = 1.0
SOLVED_REWARD = 10.0

_XSB = "# .$*@+"
_CELL_NAMES = ("wall", "floor", "target", "box", "box on target", "player", "player on target")
_NAIVE_RANDOM_SHARE = 0.2
_PALETTE = dict(
    zip(
        _XSB,
        (
            (90, 60, 40),
            (235, 225, 200),
            (230, 90, 90),
            (200, 150, 60),
            (90, 180, 90),
            (60, 100, 220),
            (150, 90, 220),
        ),
        strict=True,
    )
)


class Sokoban(TextEnvironment):
    """Sokoban over text. A move into a box pushes it when the cell behind is free.

    Rewards: -0.1 a step, +1 (-1) when the number of covered targets rises (falls), +10 when all
    are covered: 11 - 0.1 n for a level of one box solved in n actions. A move that is blocked
    changes nothing and still costs. Success = all targets covered.
    """

    settings_class: ClassVar[type[BaseModel]] = SokobanSettings
    settings: SokobanSettings

    def __init__(
        self,
        settings: SokobanSettings | None = None,
        *,
        split: Split = Split.TRAIN,
        render_mode: str | None = None,
    ):
        settings = settings or SokobanSettings()
        super().__init__(
            settings, split=split, render_mode=render_mode, extra_characters=settings.glyphs
        )
        self._name_actions(ACTION_NAMES)
        self._glyphs = str.maketrans(_XSB, self.settings.glyphs)

    def _begin(self, seed: int, noise: random.Random) -> None:
        self._level = draw_level(self.settings, split=self.split, seed=seed)
        self._room = self._level.room
        self._moves = self._room.moves
        self._player, self._boxes = self._level.player, self._level.boxes
        self._num_steps = 0
        self._next_action: dict[tuple[int, int], int] = {}
        self._naive = generator("sokoban player", seed)

    def _move(self, index: int) -> bool:
        """Moves the player, pushing a box if need be; returns whether anything changed."""
        move = self._moves[index]
        ahead = self._player + move
        if self._room.walls >> ahead & 1:
            return False
        if self._boxes >> ahead & 1:
            beyond = ahead + move
            if (self._room.walls | self._boxes) >> beyond & 1:
                return False
            self._boxes ^= (1 << ahead) ^ (1 << beyond)
        self._player = ahead
        return True

    def _num_covered(self) -> int:
        return (self._boxes & self._room.targets).bit_count()

    def _apply(self, index: int) -> tuple[float, bool, bool, bool]:
        covered = self._num_covered()
        effective = self._move(index)
        self._num_steps += 1
        reward = STEP_REWARD + TARGET_REWARD * (self._num_covered() - covered)
        self._success = self._boxes == self._room.targets
        if self._success:
            return reward + SOLVED_REWARD, True, False, effective
        return reward, False, self._num_steps >= self.settings.max_steps, effective

    def _intend(self, index: int) -> None:
        self._move(index)
        self._success = self._boxes == self._room.targets
        self._over = self._over or self._success

    def _numbers(self) -> dict[str, float]:
        return {"boxes_on_target": float(self._num_covered())}

    def _now(self) -> Level:
        return Level(room=self._room, boxes=self._boxes, player=self._player)

    def _rows(self) -> list[str]:
        text, width = self._now().text(), self._room.width
        return [text[start : start + width] for start in range(0, len(text), width)]

    def _coordinates(self, cells: int) -> str:
        return str([divmod(cell, self._room.width) for cell in cells_of(cells)])

    def observation(self) -> str:
        """Returns the map, the coordinates, or both, as the settings say."""
        parts = []
        if self.settings.observation is not ObservationFormat.COORD:
            parts.append("\n".join(self._rows()).translate(self._glyphs))
        if self.settings.observation is not ObservationFormat.GRID:
            targets, boxes = self._room.targets, self._boxes
            parts.append(
                f"Board size: {self._room.height} rows, {self._room.width} columns\n"
                f"Targets (row, column): {self._coordinates(targets)}\n"
                f"Boxes not on a target: {self._coordinates(boxes & ~targets)}\n"
                f"Boxes on a target: {self._coordinates(boxes & targets)}\n"
                f"Player: {self._coordinates(1 << self._player)}"
            )
        return "\n".join(parts)

    def _place(self, cell: int) -> str:
        row, column = divmod(cell, self._room.width)
        return f"{row},{column}"

    def _neighbours(self, cell: int) -> Iterator[str]:
        for letter, move in zip("UDLR", self._moves, strict=True):
            near = cell + move
            if self._room.walls >> near & 1:
                yield f"{letter}w"
            elif self._boxes >> near & 1:
                yield f"{letter}b"
            elif near == self._player:
                yield f"{letter}p"
            else:
                yield f"{letter}t" if self._room.targets >> near & 1 else f"{letter}f"

    def compact(self) -> str:
        """Returns coordinates and neighbours, for instance `P 2,3 Uw Df Lb Rf`.

        One line for the player P and for each box B, and one for the targets T. U D L R name the
        neighbour cell above, below, left, right: w wall, f floor, t target, b box, p player.
        """
        named = [("P", self._player), *(("B", cell) for cell in cells_of(self._boxes))]
        lines = [
            " ".join((name, self._place(cell), *self._neighbours(cell))) for name, cell in named
        ]
        lines.append(" ".join(f"T {self._place(cell)}" for cell in cells_of(self._room.targets)))
        return "\n".join(lines)

    def legend(self) -> str:
        """Returns the meaning of the glyphs in use."""
        if self.settings.observation is ObservationFormat.COORD:
            return "Coordinates are zero-based (row, column) from the top left."
        signs = zip(self.settings.glyphs, _CELL_NAMES, strict=True)
        return ", ".join(f"{glyph} {name}" for glyph, name in signs)

    def picture(self) -> NDArray[np.uint8]:
        """Returns the map in colours, 16 pixels a cell."""
        return paint(self._rows(), palette=_PALETTE)

    def level(self) -> str:
        """Returns the first state in XSB signs, the smallest of its 8 symmetric images."""
        return self._level.key()

    def strata(self) -> str:
        """Returns the optimal length of the level, for instance `length 3`."""
        return f"length {self._level.length or 'unknown'}"

    def _plan(self) -> int | None:
        """Returns the next action of a shortest solution; None when there is no solution."""
        state = (self._player, self._boxes)
        if state not in self._next_action:
            actions = solve(self._room, player=self._player, boxes=self._boxes)
            if actions is None:
                return None
            ahead = copy.copy(self)
            for action in actions:
                self._next_action[ahead._player, ahead._boxes] = action
                ahead._move(action)
        return self._next_action.get(state)

    def optimal_action(self) -> str:
        """Returns the next action of a shortest solution; once there is none, a greedy one."""
        action = self._plan()
        return self.naive_action() if action is None else ACTION_NAMES[action]

    def naive_action(self) -> str:
        """Returns a step of a greedy player: towards the box, then the box towards the target.

        It sees no walls and never walks round a box; one move in five is random.
        """
        targets, width = self._room.targets, self._room.width
        loose = next(cells_of(self._boxes & ~targets), None)
        if loose is None or self._naive.random() < _NAIVE_RANDOM_SHARE:
            return self._naive.choice(ACTION_NAMES)
        free = next(cells_of(targets & ~self._boxes))
        near = loose in {self._player + move for move in self._moves}
        row, column = divmod(loose if near else self._player, width)
        aim_row, aim_column = divmod(free if near else loose, width)
        if column != aim_column:
            return "Left" if aim_column < column else "Right"
        return "Up" if aim_row < row else "Down"

    def trace(self, actions: Sequence[str]) -> str:
        """Returns the next push that the actions lead to, for instance `at 2,3 push Left`.

        When they push nothing, the push is the next one of a shortest solution from where they end;
        when there is none, the trace is that cell, for instance `go 2,4`.
        """
        ahead = self
        for action in actions:
            before, boxes = ahead._player, ahead._boxes
            ahead = ahead.after(action)
            if ahead._boxes != boxes:
                return f"at {self._place(before)} push {action}"
        end = ahead._player
        while (following := ahead._plan()) is not None:
            before, boxes = ahead._player, ahead._boxes
            ahead = ahead.after(ACTION_NAMES[following])
            if ahead._boxes != boxes:
                return f"at {self._place(before)} push {ACTION_NAMES[following]}"
        return f"go {self._place(end)}"
