"""Pictures of grids of coloured cells."""

from __future__ import annotations

import numpy as np


def cell_picture(cells: np.ndarray, pixels: int) -> np.ndarray:
    """Return a square picture of square cells.

    Args:
        cells: Colour of each cell, in [0, 255]. [rows, rows, 3]
        pixels: Height and width of the picture, at least one a cell. If it is no
            multiple of the rows, some cells are one pixel larger than others.

    Returns:
        The colours of the pixels, of the type of ``cells``. [pixels, pixels, 3]
    """
    places = np.arange(pixels) * len(cells) // pixels  # cell of each pixel
    return cells[np.ix_(places, places)]
