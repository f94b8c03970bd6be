"""Text comparison for question answering: answers, n-grams."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def repeated_share(text: str, n: int) -> float:
    """Return the share of a text's word n-grams that are repetitions, in [0, 1)."""
    words = text.split()
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def overlong_penalty(tokens: float, longest: float, buffer: float) -> float:
    """Return DAPO's soft penalty of a length, in [-1, 0] (arXiv:2503.14476, eq. 13)."""
    return -min(max((tokens - (longest - buffer)) / buffer, 0.0), 1.0)
