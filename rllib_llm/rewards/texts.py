"""Comparing texts as question answering does: normalised words, F1, TF-IDF."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from rllib_llm.data.turn_table import Trajectory
from rllib_llm.graders.patterns import matches
from rllib_llm.graders.texts import normalise as normalise
from rllib_llm.graders.texts import word_f1 as word_f1

ANSWER = r"<answer>(.*?)</answer>"


def final_answer(trajectory: Trajectory, answer: str) -> str | None:
    """Return the last answer in what was said last, None if there is none.

    Args:
        trajectory: What an agent did.
        answer: Regular expression with one group, which is the answer.

    Raises:
        ValueError: If it is no such expression.
    """
    check_pattern(answer, groups=1)
    found = matches(answer, trajectory.completions[-1]) if len(trajectory) else []
    return found[-1].strip() if found else None


@lru_cache(maxsize=256)
def check_pattern(pattern: str, groups: int | None = None) -> None:
    """Refuse what is no regular expression of the author's.

    Raises:
        ValueError: If it is none, or has another number of groups.
    """
    try:
        found = re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}.") from error
    if groups is not None and found.groups != groups:
        raise ValueError(
            f"{pattern!r} has {found.groups} groups and needs {groups}, as in "
            f"{ANSWER!r}."
        )


def gold_answers(trajectory: Trajectory) -> list[str]:
    """Return the right answers, ``info["gold_answers"]``: a text or several.

    Raises:
        MissingInfo: If turns were played and the environment names none.
    """
    if not len(trajectory):
        return []
    return as_texts(trajectory.last_info("gold_answers"))


def as_texts(value: object) -> list[str]:
    """Return one text, or several, as a list."""
    return [value] if isinstance(value, str) else [str(v) for v in value or []]


def tf_idf(texts: Sequence[str]) -> list[dict[str, float]]:
    """Return each text's TF-IDF weights, of length 1; an empty text has none.

    Smoothed: ``idf = ln((1 + n) / (1 + df)) + 1``, so a word of all texts counts.
    """
    counts = [Counter(normalise(text).split()) for text in texts]
    df = Counter(word for count in counts for word in count)
    found = []
    for count in counts:
        weights = {
            word: tf * (math.log((1 + len(texts)) / (1 + df[word])) + 1)
            for word, tf in count.items()
        }
        norm = math.sqrt(sum(w * w for w in weights.values()))
        found.append({word: w / norm for word, w in weights.items()})
    return found


def cosine(a: dict[str, float], b: dict[str, float]) -> float:
    """Return the cosine of two texts' weights, in [0, 1]."""
    return sum(weight * b.get(word, 0.0) for word, weight in a.items())


def repeated_share(text: str, n: int) -> float:
    """Return the share of a text's n-grams of words that stood before, in [0, 1)."""
    words = text.split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def overlong_penalty(tokens: float, longest: float, buffer: float) -> float:
    """Return DAPO's soft penalty of a length, in [-1, 0] (arXiv:2503.14476, eq. 13)."""
    return -min(max((tokens - (longest - buffer)) / buffer, 0.0), 1.0)
