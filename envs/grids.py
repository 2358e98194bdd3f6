"""Rectangular grids as flat strings, row by row: symmetries and pictures."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

_PIXELS_PER_CELL = 16

Colour = tuple[int, int, int]


Permutation = Callable[[str], tuple[str, ...]]


@lru_cache(maxsize=64)
def _symmetries(height: int, width: int) -> tuple[tuple[str, Permutation], ...]:
    """Returns the 8 rotations and reflections as (header, getter of the permuted cells)."""
    cells = np.arange(height * width).reshape(height, width)
    images = [np.rot90(half, turns) for half in (cells, cells.T) for turns in range(4)]
    return tuple(
        (f"{image.shape[0]}x{image.shape[1]}:", itemgetter(*image.ravel().tolist()))
        for image in images
    )


def canonical(cells: str, *, height: int, width: int) -> str:
    """Returns one text for a grid and its 7 images under rotation and reflection.

    Args:
        cells: height x width characters, row by row.
        height: Rows.
        width: Columns.

    Returns:
        The smallest of `HEIGHTxWIDTH:cells` over the 8 symmetries of the rectangle.
    """
    header, image = min(
        (header, cells_of(cells)) for header, cells_of in _symmetries(height, width)
    )
    return header + "".join(image)


def paint(rows: Sequence[str], *, palette: Mapping[str, Colour]) -> NDArray[np.uint8]:
    """Draws each cell as a framed square of its colour.

    Args:
        rows: Text rows of equal length.
        palette: Colour (red, green, blue; 0-255) of each character.

    Returns:
        An array of shape (16 x rows, 16 x columns, 3).
    """
    colours = np.array([[palette[cell] for cell in row] for row in rows], dtype=np.uint8)
    picture = colours.repeat(_PIXELS_PER_CELL, axis=0).repeat(_PIXELS_PER_CELL, axis=1)
    picture[::_PIXELS_PER_CELL] //= 2
    picture[:, ::_PIXELS_PER_CELL] //= 2
    return picture
