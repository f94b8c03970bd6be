"""Values that change with the number of updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def value_at(given: float | Sequence[Sequence[float]], update: int) -> float:
    """Return the value in an update.

    Args:
        given: A number, or pairs ``[update, value]``, interpolated linearly.
        update: Number of the update, from 0.
    """
    if isinstance(given, int | float):
        return float(given)
    at, values = zip(*given, strict=True)
    return float(np.interp(update, at, values))
