"""Values that a search space of Ray Tune can take."""

from __future__ import annotations

import sys
from typing import Any


def alternatives(value: object) -> list[Any] | None:
    """Return the values of a search space, None if ``value`` is not a search space.

    Of a range they are the bounds; a space given by a function has an empty list.

    Args:
        value: E.g. ``tune.grid_search([1, 2])`` or ``tune.uniform(0.0, 1.0)``.
    """
    if isinstance(value, dict) and set(value) == {"grid_search"}:
        grid = value["grid_search"]
        return list(grid) if isinstance(grid, list | tuple) else [grid]
    # Not an import: without Ray Tune loaded, the value cannot be one of its objects.
    sample = sys.modules.get("ray.tune.search.sample")
    if sample is None or not isinstance(value, sample.Domain):
        return None
    if isinstance(value, sample.Categorical):
        return list(value.categories)
    if isinstance(value, sample.Integer):
        return [value.lower, value.upper - 1]  # Tune's upper bound is exclusive
    if isinstance(value, sample.Float):
        return [value.lower, value.upper]
    return []
