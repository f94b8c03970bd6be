"""Positions of three dimensions: time, row and column of a picture's placeholders.

Text advances all three by one per token. The placeholders of a picture form a square:
they have the time of its first one, and rows and columns that count from there. The
text after a picture continues at the largest of these plus one, so that a picture of
``side * side`` placeholders advances the positions by ``side`` (Qwen2-VL, Wang et al.
2024, https://arxiv.org/abs/2409.12191, section 2.1).
"""

from __future__ import annotations

import numpy as np


def positions_3d(columns: np.ndarray, starts: np.ndarray, side: int) -> np.ndarray:
    """Return time, row and column of tokens.

    Args:
        columns: Indices of the tokens in their conversations. int64 [B, T], or [1, T]
            if they are equal.
        starts: Index of the first placeholder of each conversation's pictures, in any
            order, negative where a row has fewer than M. int64 [B, M]
        side: Placeholders of a picture in each direction.

    Returns:
        int64 [3, B, T]; all three are equal outside of pictures.
    """
    count = side * side
    since = columns[:, None] - starts[:, :, None]  # [B, M, T]
    is_picture = starts[:, :, None] >= 0
    is_within = is_picture & (since >= 0) & (since < count)
    number = (since * is_within).sum(1)  # in its picture; 0 of text [B, T]
    before = (is_picture & (since >= count)).sum(1)  # pictures [B, T]
    first = columns - number - before * (count - side)
    return np.stack((first, first + number // side, first + number % side))
