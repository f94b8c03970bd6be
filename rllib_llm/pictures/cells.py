"""Pictures of grids of coloured cells."""

from __future__ import annotations

import numpy as np

_NOISE = 8.0  # standard deviation of each value


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


def noisy_picture(
    cells: np.ndarray, pixels: int, rng: np.random.Generator
) -> np.ndarray:
    """Return a picture of cells with noise, so that no two pictures are equal.

    Args:
        cells: Colour of each cell, in [0, 255]. [rows, rows, 3]
        pixels: Height and width of the picture, at least one a cell.
        rng: Generator of the noise, of standard deviation 8 in each value.

    Returns:
        uint8 [pixels, pixels, 3].
    """
    clear = cell_picture(np.asarray(cells, float), pixels)
    noisy = clear + rng.normal(0.0, _NOISE, clear.shape)
    return noisy.round().clip(0, 255).astype(np.uint8)
