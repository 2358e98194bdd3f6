"""Sokoban levels: the room, and a generator whose levels are solvable by construction.

Sets of cells are integers: bit `row * width + column` is set when the cell belongs to the set. A
room is a random walk that carves small masks (the topology of gym-sokoban); boxes are placed by
playing in reverse from the solved room, breadth first, so every optimal length is known.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from envs.grids import canonical

TURN_PROBABILITY = 0.35
WALK_STEPS_PER_SIDE = 1.7
REVERSE_STATE_LIMIT = 4_000

_MASKS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
_STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True, slots=True)
class Room:
    """A room without boxes: height x width cells, walls and targets as sets of cells."""

    height: int
    width: int
    walls: int
    targets: int

    @property
    def moves(self) -> tuple[int, int, int, int]:
        """What Up, Down, Left, Right add to a cell number."""
        return (-self.width, self.width, -1, 1)

    def key(self) -> str:
        """Returns one text for this room and its images under rotation and reflection."""
        text = "".join(
            "#" if self.walls >> cell & 1 else "." if self.targets >> cell & 1 else " "
            for cell in range(self.height * self.width)
        )
        return canonical(text, height=self.height, width=self.width)


@dataclass(frozen=True, slots=True)
class Level:
    """A room with boxes (a set of cells) and a player (a cell).

    Attributes:
        room: Walls and targets.
        boxes: Set of cells.
        player: Cell number.
        length: Actions of an optimal solution; None when it is not known.
    """

    room: Room
    boxes: int
    player: int
    length: int | None = None

    def text(self) -> str:
        """Returns the cells in the signs of XSB (`# @ $ . * +` and blank), row by row."""
        signs = []
        for cell in range(self.room.height * self.room.width):
            target = self.room.targets >> cell & 1
            if self.room.walls >> cell & 1:
                sign = "#"
            elif self.boxes >> cell & 1:
                sign = "*" if target else "$"
            elif cell == self.player:
                sign = "+" if target else "@"
            else:
                sign = "." if target else " "
            signs.append(sign)
        return "".join(signs)

    def key(self) -> str:
        """Returns one text for this level and its images under rotation and reflection."""
        return canonical(self.text(), height=self.room.height, width=self.room.width)


def cells_of(cells: int) -> Iterator[int]:
    """Yields the members of a set of cells in increasing order."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


@lru_cache(maxsize=64)
def _carvings(height: int, width: int) -> tuple[tuple[int, ...], ...]:
    """Returns for each cell the sets that the masks carve there, clipped to the interior."""

    def carve(row: int, column: int, mask: tuple[tuple[int, int], ...]) -> int:
        cells = ((row + down, column + right) for down, right in mask)
        return sum(1 << r * width + c for r, c in cells if 0 < r < height - 1 and 0 < c < width - 1)

    return tuple(
        tuple(carve(row, column, mask) for mask in _MASKS)
        for row in range(height)
        for column in range(width)
    )


def carve_floor(draw: random.Random, *, height: int, width: int) -> int:
    """Returns a connected set of floor cells inside the border."""
    uniform = draw.random
    carvings = _carvings(height, width)
    row, column = 1 + int(uniform() * (height - 2)), 1 + int(uniform() * (width - 2))
    down, right = _STEPS[int(uniform() * 4)]
    floor = 0
    for _ in range(int(WALK_STEPS_PER_SIDE * (height + width))):
        if uniform() < TURN_PROBABILITY:
            down, right = _STEPS[int(uniform() * 4)]
        row = min(max(row + down, 1), height - 2)
        column = min(max(column + right, 1), width - 2)
        floor |= carvings[row * width + column][int(uniform() * len(_MASKS))]
    return floor


def draw_room(draw: random.Random, *, height: int, width: int, num_boxes: int) -> Room | None:
    """Returns a random room with `num_boxes` targets; None when the floor is too small."""
    floor = carve_floor(draw, height=height, width=width)
    if floor.bit_count() < 2 * num_boxes + 1:
        return None
    targets = sum(1 << cell for cell in draw.sample(list(cells_of(floor)), num_boxes))
    walls = ((1 << height * width) - 1) & ~floor
    return Room(height=height, width=width, walls=walls, targets=targets)


def reverse_play(room: Room, *, depth: int) -> list[list[tuple[int, int]]]:
    """Plays backwards from the solved room, breadth first.

    A reverse step moves the player back one cell, alone or pulling the box in front of it. The
    first one is a pull, since every solution ends with a push. States are visited in the order of
    distance, so distances are exact; it stops after `REVERSE_STATE_LIMIT` states.

    Args:
        room: The room; every target holds a box in the solved state.
        depth: Most reverse steps.

    Returns:
        For each k the states (player cell, set of boxes) whose optimal solution has k actions; the
        list ends before the first empty distance, and entry 0 is empty.
    """
    walls, solved, moves = room.walls, room.targets, room.moves
    layers: list[list[tuple[int, int]]] = [[]]
    seen: set[tuple[int, int]] = set()
    layer = []
    for target in cells_of(solved):
        for move in moves:
            cell, back = target - move, target - 2 * move
            if (walls | solved) >> cell & 1 or (walls | solved) >> back & 1:
                continue
            state = (back, solved ^ (1 << target) ^ (1 << cell))
            seen.add(state)
            layer.append(state)
    while layer and len(layers) <= depth:
        layers.append(layer)
        if len(layers) > depth or len(seen) > REVERSE_STATE_LIMIT:
            break
        following = []
        for player, boxes in layer:
            blocked = walls | boxes
            for move in moves:
                back = player - move
                if blocked >> back & 1:
                    continue
                state = (back, boxes)
                if state not in seen:
                    seen.add(state)
                    following.append(state)
                if boxes >> player + move & 1:
                    pulled = boxes ^ (1 << player + move) ^ (1 << player)
                    state = (back, pulled)
                    if pulled != solved and state not in seen:
                        seen.add(state)
                        following.append(state)
        layer = following
    return layers


def place_boxes(
    draw: random.Random, *, room: Room, depth: int, shortest: int, longest: int
) -> Level | None:
    """Draws a level in the room whose optimal length lies in [shortest, longest].

    The length is drawn uniformly among those that occur, then the state among those of that length.

    Returns:
        The level, or None when no state of the room has such a length.
    """
    layers = reverse_play(room, depth=min(depth, longest))
    lengths = range(shortest, len(layers))
    if not lengths:
        return None
    length = draw.choice(lengths)
    player, boxes = draw.choice(layers[length])
    return Level(room=room, boxes=boxes, player=player, length=length)
