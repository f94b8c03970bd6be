"""Comparing short answers: texts as question answering does, and numbers."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
MAX_NUMBER_CHARS = 1_000


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
    text = text.strip().strip("$%").replace(",", "")
    try:
        found = float(text) if len(text) <= MAX_NUMBER_CHARS else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def number_match(given: str, gold: str | float, tolerance: float = 1e-6) -> bool:
    """Say whether a text is a number close to the right one.

    Integers of more digits than a float holds are compared as integers.

    Args:
        given: The answer.
        gold: The right number.
        tolerance: Largest relative and absolute difference, >= 0.

    Raises:
        ValueError: If ``gold`` is no number, or ``tolerance`` is negative.
    """
    wanted = read_number(str(gold))
    if wanted is None:
        raise ValueError(f"gold={gold!r} must be a finite number.")
    if tolerance < 0:
        raise ValueError(f"tolerance={tolerance} must be >= 0.")
    if (found := read_number(given)) is None:
        return False
    if tolerance == 0 and (whole := _integers(given, str(gold))):
        return whole[0] == whole[1]
    return math.isclose(found, wanted, rel_tol=tolerance, abs_tol=tolerance)


def _integers(*texts: str) -> tuple[int, ...] | None:
    plain = [text.strip().replace(",", "") for text in texts]
    if all(re.fullmatch(r"[+-]?[0-9]{1,1000}", text) for text in plain):
        return tuple(map(int, plain))
    return None


def _several(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
