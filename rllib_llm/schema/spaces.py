"""Values that a search space of Ray Tune may put in its place."""

from __future__ import annotations

import sys
from typing import Any


def alternatives(value: Any) -> list[Any] | None:
    """Return what a search space can draw, None if ``value`` is no search space.

    Of a range these are its bounds; nothing of a function.

    Args:
        value: E.g. ``tune.grid_search([1, 2])`` or ``tune.uniform(0.0, 1.0)``.
    """
    if isinstance(value, dict) and set(value) == {"grid_search"}:
        found = value["grid_search"]
        return list(found) if isinstance(found, list | tuple) else [found]
    sample = sys.modules.get("ray.tune.search.sample")
    if sample is None or not isinstance(value, sample.Domain):
        return None
    if isinstance(value, sample.Categorical):
        return list(value.categories)
    if isinstance(value, sample.Integer):
        return [value.lower, value.upper - 1]
    if isinstance(value, sample.Float):
        return [value.lower, value.upper]
    return []
