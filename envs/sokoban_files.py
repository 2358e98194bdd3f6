"""Sokoban level collections in XSB text, as Boxoban and Microban use it.

Rows are made of `# @ $ . * +` and blanks (also written `-` or `_`); anything else between levels is
a title or a comment. Cells outside the walls become walls.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from envs.errors import LevelFileError, SolverLimitError
from envs.sokoban_levels import Level, Room, cells_of
from envs.sokoban_solver import solve

_SIGNS = frozenset("#@$.*+ ")
_BLANKS = str.maketrans("-_", "  ")
_PROOF_STATE_LIMIT = 2_000

NumberedRows = list[tuple[int, str]]


def load_levels(path: Path) -> tuple[Level, ...]:
    """Loads every level of a collection.

    A level is refused when it has no player or several, no box, boxes unequal to targets, an open
    border, an unknown sign, a box or target out of reach, or provably no solution (searched up to a
    bound; a level that the bound leaves undecided is accepted, with its length unknown).

    Raises:
        LevelFileError: A malformed or unsolvable level, or no level at all, with file and line.
        FileNotFoundError: The file does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no Sokoban level file at `{path}`\n"
            "hint: give `levels_file` the path of an XSB text file, or leave it out"
        )
    state = path.stat()
    return _load(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _load(path: Path, _modified_ns: int, _size: int) -> tuple[Level, ...]:
    levels = tuple(parse_levels(path.read_text(encoding="utf-8"), file=str(path)))
    if not levels:
        raise LevelFileError(
            "no level found", file=str(path), line=1, hint="level rows are made of `# @ $ . * +`"
        )
    return levels


def parse_levels(text: str, *, file: str) -> Iterator[Level]:
    """Yields the levels of a collection's text; errors as for `load_levels`."""
    rows: NumberedRows = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        row = line.rstrip().translate(_BLANKS)
        if row.lstrip().startswith(("#", "*")):
            if unknown := sorted(set(row) - _SIGNS):
                raise LevelFileError(
                    f"unknown sign `{unknown[0]}` in a level row",
                    file=file,
                    line=number,
                    hint="a row is made of `# @ $ . * +` and blanks; start comments with `;`",
                )
            rows.append((number, row))
        elif rows:
            yield _read_level(rows, file=file)
            rows = []


def _read_level(rows: NumberedRows, *, file: str) -> Level:
    first = rows[0][0]

    def refuse(reason: str, *, hint: str, line: int = first) -> LevelFileError:
        return LevelFileError(reason, file=file, line=line, hint=hint)

    width = max(len(row) for _, row in rows)
    grid = "".join(row.ljust(width) for _, row in rows)
    height = len(rows)
    players = [cell for cell, sign in enumerate(grid) if sign in "@+"]
    if len(players) != 1:
        found = "no player" if not players else f"{len(players)} players"
        raise refuse(f"the level has {found}", hint="mark exactly one cell `@` or `+`")
    reached = _region(grid, start=players[0], height=height, width=width)
    if reached is None:
        raise refuse("the border is open", hint="close the walls around the player with `#`")
    boxes, targets = _cells(grid, "$*"), _cells(grid, ".*+")
    for cell in cells_of((boxes ^ targets) & ~reached):
        raise refuse(
            "a box or target cannot be reached",
            hint="connect it with the player's region or remove it",
            line=rows[cell // width][0],
        )
    boxes, targets = boxes & reached, targets & reached
    if not boxes or boxes.bit_count() != targets.bit_count():
        raise refuse(
            f"{boxes.bit_count()} boxes for {targets.bit_count()} targets",
            hint="a level has as many boxes as targets, at least one",
        )
    if boxes == targets:
        raise refuse("the level is already solved", hint="move at least one box off its target")
    walls = (((1 << height * width) - 1) & ~reached) | _cells(grid, "#")
    room = Room(height=height, width=width, walls=walls, targets=targets)
    try:
        plan = solve(room, player=players[0], boxes=boxes, state_limit=_PROOF_STATE_LIMIT)
    except SolverLimitError:
        return Level(room=room, boxes=boxes, player=players[0])
    if plan is None:
        raise refuse("the level has no solution", hint="remove it or move its boxes")
    return Level(room=room, boxes=boxes, player=players[0], length=len(plan))


def _cells(grid: str, signs: str) -> int:
    return sum(1 << cell for cell, sign in enumerate(grid) if sign in signs)


def _region(grid: str, *, start: int, height: int, width: int) -> int | None:
    """Returns the cells connected with `start` round walls; None when they meet the edge."""
    reached, frontier = 1 << start, [start]
    for cell in frontier:  # grows while it is read: a queue
        row, column = divmod(cell, width)
        if row in (0, height - 1) or column in (0, width - 1):
            return None
        for following in (cell - width, cell + width, cell - 1, cell + 1):
            if grid[following] != "#" and not reached >> following & 1:
                reached |= 1 << following
                frontier.append(following)
    return reached
