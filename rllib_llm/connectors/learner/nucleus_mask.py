"""Column of the tokens that a nucleus mask allowed where each one was sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rllib_llm.data import columns

Allowed = list[tuple[int, np.ndarray]]
"""First column of a turn, and the bits of its tokens, uint8 [T, ceil(V / 8)]."""

_EIGHT = np.uint8(255)  # eight allowed tokens


def allowed_column(
    allowed: Sequence[Allowed], size: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Return the column ``allowed_tokens``.

    Args:
        allowed: The turns of each row, at least one in all. [B]
        size: Rows and columns of the batch, B and T.

    Returns:
        uint8 [B, T, ceil(V / 8)]; tokens that were not sampled allow everything.
    """
    width = next(bits.shape[1] for row in allowed for _, bits in row)
    out = np.full((*size, width), _EIGHT)
    for number, row in enumerate(allowed):
        for start, bits in row:
            out[number, start : start + len(bits)] = bits
    return {columns.ALLOWED_TOKENS: out}
