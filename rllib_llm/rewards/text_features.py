"""Text comparison for question answering: answers, TF-IDF, n-grams."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rllib_llm.data.turn_table import Trajectory
from rllib_llm.graders.patterns import matches
from rllib_llm.graders.short_answers import normalise as normalise
from rllib_llm.graders.short_answers import word_f1 as word_f1

ANSWER = r"<answer>(.*?)</answer>"


def final_answer(trajectory: Trajectory, answer: str) -> str | None:
    """Return the last answer of the last completion, None if there is none.

    Args:
        trajectory: The agent's trajectory.
        answer: Regular expression with one group, which is the answer.

    Raises:
        ValueError: If ``answer`` is not such an expression.
    """
    check_pattern(answer, groups=1)
    answers = matches(answer, trajectory.completions[-1]) if len(trajectory) else []
    return answers[-1].strip() if answers else None


@lru_cache(maxsize=256)
def check_pattern(pattern: str, groups: int | None = None) -> None:
    """Check that a setting is a regular expression with a number of groups.

    Raises:
        ValueError: If it is not, or has another number of groups.
    """
    try:
        # DOTALL as in the matching: answers may have several lines.
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{pattern!r} is no regular expression: {error}. Correct the pattern."
        ) from error
    if groups is not None and compiled.groups != groups:
        raise ValueError(
            f"{pattern!r} has {compiled.groups} groups and needs {groups}, as in "
            f"{ANSWER!r}. Use (?:...) for groups that do not capture."
        )


def gold_answers(trajectory: Trajectory) -> list[str]:
    """Return the correct answers, ``info["gold_answers"]``: one text or several.

    Raises:
        MissingInfo: If the environment gave none for the trajectory's turns.
    """
    if not len(trajectory):
        return []
    return as_texts(trajectory.last_info("gold_answers"))


def as_texts(value: str | Iterable[object] | None) -> list[str]:
    """Return one text, or several, as a list."""
    return [value] if isinstance(value, str) else [str(v) for v in value or []]


def tf_idf(texts: Sequence[str]) -> list[dict[str, float]]:
    """Return each text's TF-IDF weights with unit norm; an empty text has none.

    Uses the smoothed ``idf = ln((1 + n) / (1 + df)) + 1``, so that words of all texts
    count.
    """
    counts = [Counter(normalise(text).split()) for text in texts]
    df = Counter(word for count in counts for word in count)
    vectors = []
    for count in counts:
        weights = {
            word: tf * (math.log((1 + len(texts)) / (1 + df[word])) + 1)
            for word, tf in count.items()
        }
        norm = math.sqrt(sum(w * w for w in weights.values()))
        vectors.append({word: w / norm for word, w in weights.items()})
    return vectors


def cosine(a: dict[str, float], b: dict[str, float]) -> float:
    """Return the cosine of two texts' weights, in [0, 1]."""
    return sum(weight * b.get(word, 0.0) for word, weight in a.items())


def repeated_share(text: str, n: int) -> float:
    """Return the share of a text's word n-grams that are repetitions, in [0, 1)."""
    words = text.split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def overlong_penalty(tokens: float, longest: float, buffer: float) -> float:
    """Return DAPO's soft penalty of a length, in [-1, 0] (arXiv:2503.14476, eq. 13)."""
    return -min(max((tokens - (longest - buffer)) / buffer, 0.0), 1.0)
