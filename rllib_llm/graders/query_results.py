"""Comparison of query results and of sets of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

_TOLERANCE = 1e-9


def rows_match(
    given: Iterable[Sequence[Any]],
    gold: Iterable[Sequence[Any]],
    *,
    ordered: bool = False,
    tolerance: float = _TOLERANCE,
) -> bool:
    """Return whether two results hold the same rows, repetitions included.

    Args:
        given: Rows of numbers, texts and None; a text never equals a number. Anything
            else is wrong.
        gold: The right rows.
        ordered: Whether the order of rows counts, as after ORDER BY.
        tolerance: Maximum relative and absolute difference of numbers, >= 0.

    Returns:
        Whether they match; without order, floats are compared after sorting.
    """
    a, b = _rows(given), _rows(gold)
    if a is None or b is None or len(a) != len(b) or any(map(_is_odd, (*a, *b))):
        return False
    if not ordered:
        a, b = sorted(a, key=_key), sorted(b, key=_key)
    return all(_same_values(x, y, tolerance) for x, y in zip(a, b, strict=True))


def values_match(given: object, gold: object, tolerance: float = _TOLERANCE) -> bool:
    """Return whether two JSON values are equal.

    Tuples equal lists, and an int equals a float of the same value; True does not equal
    1. Values may be nested to any depth.
    """
    return _same_values(given, gold, tolerance)


def set_match(given: Iterable[Any], gold: Iterable[Any]) -> bool:
    """Return whether two lists hold the same values, without repetitions.

    Nested values are compared as JSON. Anything but a list is wrong.
    """
    if not (_is_list(given) and _is_list(gold)):
        return False
    a, b = ({_key(value) for value in values} for values in (given, gold))
    return a == b


def _rows(rows: Any) -> list[tuple[Any, ...]] | None:
    """Return rows as tuples; None if the value is not a list of rows."""
    rows = list(rows) if _is_list(rows) else [None]
    return None if not all(map(_is_list, rows)) else [tuple(row) for row in rows]


def _is_list(values: object) -> bool:
    return isinstance(values, Iterable) and not isinstance(
        values, str | bytes | Mapping
    )


def _is_odd(row: Sequence[Any]) -> bool:
    # NaN equals nothing, not even itself, and would make sorting unreliable.
    return any(isinstance(v, float) and math.isnan(v) for v in row)


def _same_values(given: object, gold: object, tolerance: float) -> bool:
    """Compare nested values iteratively: recursion would fail on deep ones."""
    pairs = [(given, gold)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            if len(a) != len(b):
                return False
            pairs += zip(a, b, strict=True)
        elif isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs += [(a[key], b[key]) for key in b]
        elif not _same(a, b, tolerance):
            return False
    return True


def _same(a: Any, b: Any, tolerance: float) -> bool:
    if not (_is_number(a) and _is_number(b)):
        return type(a) is type(b) and a == b
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    try:
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an int too large for a float
        if any(isinstance(x, float) and not math.isfinite(x) for x in (a, b)):
            return False
        a, b = Fraction(a), Fraction(b)
        return abs(a - b) <= Fraction(tolerance) * max(abs(a), abs(b), 1)


def _key(value: object) -> tuple[Any, ...]:
    """Return a flat tuple as a value's key for sorting and for sets.

    Numbers are rounded, so that rounding errors do not change the order of rows. Lists
    and objects become their items between marks, iteratively: recursion would fail on
    deep ones.
    """
    return tuple(_tokens(value))


def _tokens(value: object) -> Iterator[tuple[Any, ...]]:
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, _Mark):
            yield (2, "mark", value.text)
        elif isinstance(value, list | tuple):
            left += [_Mark("]"), *reversed(value), _Mark("[")]
        elif isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: str(item[0]), reverse=True)
            inner = [part for k, v in items for part in (v, str(k))]
            left += [_Mark("}"), *inner, _Mark("{")]
        elif _is_number(value):
            yield (1, float(f"{value:.6g}") if isinstance(value, float) else value)
        else:
            yield (0,) if value is None else (2, type(value).__name__, str(value))


class _Mark:
    """A bracket between items, distinct from every JSON value."""

    def __init__(self, text: str):
        self.text = text


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
