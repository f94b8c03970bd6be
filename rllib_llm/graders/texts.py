"""Comparing short answers: texts as question answering does, and numbers."""

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
# Far more digits than a tolerance asks for, and no exponent that raises.
_DIFFERENCES = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, articles and extra space.

    As SQuAD compares answers (Rajpurkar et al. 2016, arXiv:1606.05250, sec. 6.1).
    """
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def word_f1(given: str, wanted: str) -> float:
    """Return the F1 of two texts' normalised words, in [0, 1]; empty texts: 0."""
    a, b = normalise(given).split(), normalise(wanted).split()
    common = sum((Counter(a) & Counter(b)).values())
    return 2.0 * common / (len(a) + len(b)) if common else 0.0


def exact_match(given: str, golds: str | Iterable[str]) -> bool:
    """Say whether a text is one of the right ones, after normalisation."""
    return normalise(given) in {normalise(gold) for gold in _several(golds)}


def best_f1(given: str, golds: str | Iterable[str]) -> float:
    """Return the largest :func:`word_f1` with any right text, in [0, 1]."""
    return max((word_f1(given, gold) for gold in _several(golds)), default=0.0)


def read_number(text: str) -> float | None:
    """Return the number that a text is; thousands' commas, %, $ are left out.

    Texts that are no finite number, or longer than ``MAX_NUMBER_CHARS``: None.
    """
    text = _bare(text)
    try:
        found = float(text) if len(text) <= MAX_NUMBER_CHARS else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def number_match(given: str, gold: str | int | float, tolerance: float = 1e-6) -> bool:
    """Return whether a text is a number close to the right one.

    Numbers are compared as they are written, so that no digit of a long integer is
    lost; with a ``tolerance`` of 0 they must be equal.

    Args:
        given: The answer. Beyond ``MAX_NUMBER_CHARS`` characters it is wrong.
        gold: The right number; a text is read as ``given`` is.
        tolerance: Largest relative and absolute difference, >= 0.

    Raises:
        ValueError: If ``gold`` is no finite number, or ``tolerance`` is negative.
    """
    wanted = Decimal(gold) if type(gold) is int else _read_exactly(str(gold))
    if wanted is None:
        raise ValueError(f"gold={gold!r} must be a finite number.")
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance} must be >= 0.")
    if (found := _read_exactly(given)) is None:
        return False
    if tolerance == 0:
        return found == wanted
    with localcontext(_DIFFERENCES):
        largest = max(abs(found), abs(wanted), Decimal(1))
        return abs(found - wanted) <= Decimal(tolerance) * largest


def _read_exactly(text: str) -> Decimal | None:
    """Return the number that a text is; None if it is no finite one."""
    text = _bare(text)
    try:
        found = Decimal(text) if len(text) <= MAX_NUMBER_CHARS else Decimal("nan")
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def _bare(text: str) -> str:
    return text.strip().strip("$%").replace(",", "")


def _several(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
