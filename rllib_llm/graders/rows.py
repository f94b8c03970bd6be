"""Comparing results: rows of a query, sets of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

_TOLERANCE = 1e-9


def rows_match(
    given: Iterable[Sequence[Any]],
    gold: Iterable[Sequence[Any]],
    *,
    ordered: bool = False,
    tolerance: float = _TOLERANCE,
) -> bool:
    """Say whether two results hold the same rows, repetitions included.

    Args:
        given: Rows of numbers, texts and None; a text is no number.
        gold: The right rows.
        ordered: Whether their order counts, as after ORDER BY.
        tolerance: Largest relative and absolute difference of numbers, >= 0.

    Returns:
        Whether they match; without order, floats are matched after sorting.
    """
    a, b = ([tuple(row) for row in rows] for rows in (given, gold))
    if len(a) != len(b) or any(map(_is_odd, (*a, *b))):
        return False
    if not ordered:
        a, b = sorted(a, key=_row_key), sorted(b, key=_row_key)
    return all(_same_row(x, y, tolerance) for x, y in zip(a, b, strict=True))


def values_match(given: Any, gold: Any, tolerance: float = _TOLERANCE) -> bool:
    """Say whether two values, as JSON has them, are the same.

    Tuples count as lists, an int and a float by their values; True is not 1.
    """
    if isinstance(given, list | tuple) and isinstance(gold, list | tuple):
        return len(given) == len(gold) and all(
            values_match(a, b, tolerance) for a, b in zip(given, gold, strict=True)
        )
    if isinstance(given, dict) and isinstance(gold, dict):
        return given.keys() == gold.keys() and all(
            values_match(given[key], gold[key], tolerance) for key in gold
        )
    return _same(given, gold, tolerance)


def set_match(given: Iterable[Any], gold: Iterable[Any]) -> bool:
    """Say whether two lists hold the same values, repetitions left out."""
    keys = [{_key(value) for value in values} for values in (given, gold)]
    return keys[0] == keys[1]


def _is_odd(row: Sequence[Any]) -> bool:
    return any(isinstance(v, float) and math.isnan(v) for v in row)


def _same_row(a: Sequence[Any], b: Sequence[Any], tolerance: float) -> bool:
    return len(a) == len(b) and all(
        _same(x, y, tolerance) for x, y in zip(a, b, strict=True)
    )


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if _is_number(a) and _is_number(b):
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    return type(a) is type(b) and a == b


def _row_key(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_key(value) for value in row)


def _key(value: Any) -> tuple[Any, ...]:
    """Order values of all types; numbers are rounded, lest noise reorder rows."""
    if _is_number(value):
        return (1, float(f"{value:.6g}") if isinstance(value, float) else value)
    return (0,) if value is None else (2, type(value).__name__, str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
