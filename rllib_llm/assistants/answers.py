"""Answers of assistants, and their values."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np

from rllib_llm.assistants.settings import Assistant, Parse
from rllib_llm.graders.patterns import matches


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer to a question.

    Attributes:
        text: The text; None if there is none, e.g. because the question is too long.
        sampled_tokens: Tokens of the answer.
        prompt_tokens: Tokens of the question.
        is_too_long: Whether the question did not fit into the context.
    """

    text: str | None
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    is_too_long: bool = False


def value_of(text: str | None, parse: Parse) -> float | None:
    """Return the value of an answer, None if it is unreadable.

    A word is read from the answer's last line with text, in which exactly one of them
    must occur, as a whole word in upper or lower case. A number is the last match, in
    [low, high], and its value ``(number - low) / (high - low)``.
    """
    if text is None:
        return None
    if parse.words:
        return _chosen(text, parse)
    texts = matches(parse.number, text)
    try:
        number = float(texts[-1])
    except (IndexError, ValueError):
        return None
    # Also false for NaN.
    if not parse.low <= number <= parse.high:
        return None
    return (number - parse.low) / (parse.high - parse.low)


def text_of(text: str | None, parse: Parse) -> str | None:
    """Return the text of an answer: the last match; None if it is unreadable."""
    if text is None:
        return None
    texts = matches(parse.text, text)
    return texts[-1].strip() or None if texts else None


def reduced(values: Sequence[float | None], assistant: Assistant) -> list[float | None]:
    """Return the value of each question from those of its answers.

    Args:
        values: Values of ``samples`` answers to each question, in order; None where
            unreadable. [Q * samples]
        assistant: The assistant.

    Returns:
        Values of the questions: the mean or median of the readable ones; without any
        ``unreadable``, which is None if episodes are dropped. [Q]
    """
    reduce = np.median if assistant.reduce == "median" else np.mean
    of_questions: list[float | None] = []
    for first in range(0, len(values), assistant.samples):
        answers = values[first : first + assistant.samples]
        readable = [value for value in answers if value is not None]
        of_questions.append(
            float(reduce(readable)) if readable else assistant.unreadable
        )
    assert all(value is None or math.isfinite(value) for value in of_questions)
    return of_questions


def _chosen(text: str, parse: Parse) -> float | None:
    lines = [line for line in text.lower().splitlines() if line.strip()]
    if not lines:
        return None
    occurring = [
        word
        for word in parse.words
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", lines[-1])
    ]
    return parse.words[occurring[0]] if len(occurring) == 1 else None
