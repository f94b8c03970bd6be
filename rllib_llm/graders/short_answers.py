"""Comparison of short answers: texts, as in question answering, and numbers."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    Context,
    Decimal,
    InvalidOperation,
    localcontext,
)

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
MAX_NUMBER_CHARS = 1_000
# Far more digits than any tolerance needs, and exponents that do not raise.
_DIFFERENCES = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra space.

    The normalisation of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250, sec. 6.1).
    """
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def word_f1(given: str, wanted: str) -> float:
    """Return the F1 of two texts' normalised words, in [0, 1]; 0 for empty texts."""
    a, b = normalise(given).split(), normalise(wanted).split()
    common = sum((Counter(a) & Counter(b)).values())
    return 2.0 * common / (len(a) + len(b)) if common else 0.0


def exact_match(given: str, golds: str | Iterable[str]) -> bool:
    """Return whether a text equals one of the right ones after normalisation."""
    return normalise(given) in {normalise(gold) for gold in _several(golds)}


def best_f1(given: str, golds: str | Iterable[str]) -> float:
    """Return the largest :func:`word_f1` with any right text, in [0, 1]."""
    return max((word_f1(given, gold) for gold in _several(golds)), default=0.0)


def read_number(text: str) -> float | None:
    """Return a text as a number, ignoring thousands separators, % and $.

    Returns None if the text is not a finite number, or longer than
    ``MAX_NUMBER_CHARS``.
    """
    text = _bare(text)
    try:
        number = float(text) if len(text) <= MAX_NUMBER_CHARS else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def number_match(given: str, gold: str | int | float, tolerance: float = 1e-6) -> bool:
    """Return whether a text is a number close to the right one.

    Numbers are compared in decimal notation, so that long integers keep all their
    digits; with a ``tolerance`` of 0 they must be equal.

    Args:
        given: The answer. Answers beyond ``MAX_NUMBER_CHARS`` characters are wrong.
        gold: The right number; a text is read as ``given`` is.
        tolerance: Maximum relative and absolute difference, >= 0.

    Raises:
        ValueError: If ``gold`` is not a finite number, or ``tolerance`` is negative.
    """
    wanted = Decimal(gold) if type(gold) is int else _read_exactly(str(gold))
    if wanted is None:
        raise ValueError(f"gold={gold!r} must be a finite number.")
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance} must be >= 0.")
    if (number := _read_exactly(given)) is None:
        return False
    if tolerance == 0:
        return number == wanted
    with localcontext(_DIFFERENCES):
        largest = max(abs(number), abs(wanted), Decimal(1))
        return abs(number - wanted) <= Decimal(tolerance) * largest


def _read_exactly(text: str) -> Decimal | None:
    """Return a text as an exact number; None if it is not a finite number."""
    text = _bare(text)
    try:
        number = Decimal(text) if len(text) <= MAX_NUMBER_CHARS else Decimal("nan")
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _bare(text: str) -> str:
    return text.strip().strip("$%").replace(",", "")


def _several(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
