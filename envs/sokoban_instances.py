"""Which Sokoban level a seed names: generated, or taken from a level file."""

from functools import lru_cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envs.base import ObservationFormat, Split
from envs.errors import UnsatisfiableSettingsError
from envs.seeding import generator
from envs.sokoban_files import load_levels
from envs.sokoban_levels import Level, draw_room, place_boxes
from envs.splits import members, split_of

DEFAULT_GLYPHS = "#_OX√PS"
MAX_DRAWS = 4_000


class SokobanSettings(BaseModel):
    """Settings of `Sokoban`; sizes in cells, lengths in actions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    height: int = Field(default=6, ge=4, le=20, description="rows, border included")
    width: int = Field(default=6, ge=4, le=20, description="columns, border included")
    boxes: int = Field(default=1, ge=1, le=6, description="boxes (and targets)")
    search_depth: int = Field(
        default=30, ge=1, le=1000, description="most steps of the reverse play that places boxes"
    )
    min_solution: int = Field(default=1, ge=1, description="least optimal length, in actions")
    max_solution: int | None = Field(
        default=None, ge=1, description="largest optimal length, in actions; none: no bound"
    )
    max_steps: int = Field(default=100, ge=1, description="actions until the level is truncated")
    observation: ObservationFormat = Field(
        default=ObservationFormat.GRID, description="grid | coord | grid_coord"
    )
    glyphs: str = Field(
        default=DEFAULT_GLYPHS,
        description="7 signs: wall, floor, target, box, box on target, player, player on target",
    )
    levels_file: Path | None = Field(
        default=None, description="XSB collection to take levels from; none: generate them"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (
            len(self.glyphs) != 7
            or len(set(self.glyphs)) != 7
            or any(map(str.isspace, self.glyphs))
        ):
            raise ValueError(f"glyphs=`{self.glyphs}`: allowed are 7 different signs, none blank")
        longest = self.search_depth if self.max_solution is None else self.max_solution
        if self.min_solution > longest:
            name = "search_depth" if self.max_solution is None else "max_solution"
            raise ValueError(
                f"min_solution={self.min_solution} exceeds {name}={longest}: lower the first or "
                "raise the second"
            )
        return self


@lru_cache(maxsize=4096)
def draw_level(settings: SokobanSettings, *, split: Split, seed: int) -> Level:
    """Returns the level that a seed names.

    A room (walls and targets, up to rotation and reflection) belongs to one split whole, so that no
    position of an evaluation level is ever met on the way through a training level.

    Raises:
        UnsatisfiableSettingsError: No such level within `MAX_DRAWS` rooms or in the file.
        LevelFileError: The level file is malformed.
    """
    if settings.levels_file is not None:
        return _draw_from_file(settings, file=settings.levels_file, split=split, seed=seed)
    draw = generator("sokoban", split, seed)
    longest = settings.max_solution or settings.search_depth
    for _ in range(MAX_DRAWS):
        room = draw_room(
            draw, height=settings.height, width=settings.width, num_boxes=settings.boxes
        )
        if room is None or split_of(room.key()) is not split:
            continue
        level = place_boxes(
            draw,
            room=room,
            depth=settings.search_depth,
            shortest=settings.min_solution,
            longest=longest,
        )
        if level is not None:
            return level
    raise UnsatisfiableSettingsError(
        f"no {settings.height}x{settings.width} level with {settings.boxes} boxes and an optimal "
        f"length of {settings.min_solution} to {longest} actions in {MAX_DRAWS} draws\n"
        "hint: lower `min_solution`, raise `max_solution` and `search_depth`, or enlarge the room"
    )


def _draw_from_file(settings: SokobanSettings, *, file: Path, split: Split, seed: int) -> Level:
    levels = load_levels(file)
    candidates = [
        levels[index]
        for index in members([level.room.key() for level in levels], split=split)
        if _fits(levels[index], settings)
    ]
    if not candidates:
        raise UnsatisfiableSettingsError(
            f"none of the {len(levels)} levels of `{file}` is in the split `{split}` with an "
            f"optimal length from {settings.min_solution} to {settings.max_solution or 'any'}\n"
            "hint: add levels (one different room in five is held out) or widen the bounds"
        )
    return generator("sokoban file", split, seed).choice(candidates)


def _fits(level: Level, settings: SokobanSettings) -> bool:
    if level.length is None:  # too large for the bounded proof: longer than any bound in use
        return settings.max_solution is None
    return settings.min_solution <= level.length and (
        settings.max_solution is None or level.length <= settings.max_solution
    )
