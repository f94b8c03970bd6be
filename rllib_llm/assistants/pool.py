"""Scripted writer of texts: it chooses from a pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rllib_llm.assistants.questions import Question
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.errors import ConfigError
from rllib_llm.retrieval.bm25 import words


@component("answer", "pool")
def pool(
    question: Question,
    *,
    candidates: list[str],
    choose: Literal["contrast", "random"] = "contrast",
    form: str = "{text}",
) -> str:
    """Write a text of a pool, in a language model's place.

    Use it to measure what a search over texts can do, with a writer whose texts are
    known. It never writes a text that exists already.

    Args:
        question: The question.
        candidates: The pool.
        choose: "contrast": the text with the most words of the observations and of
            solved replies and the fewest of failed ones, by chance among equals.
            "random": any.
        form: The answer, with ``{text}``.

    Returns:
        The answer; an empty one if the pool is used up.
    """
    if not question.trajectories:
        raise ConfigError(
            "The script 'pool' writes texts for rollouts.prompt_text. Set the "
            "assistant's parse.text, e.g. to '(.+)'."
        )
    left = [text for text in candidates if text not in question.texts]
    if not left:
        return ""
    if choose == "contrast":
        return form.format(text=best(left, question))
    rng = np.random.default_rng(question.seed)
    return form.format(text=left[int(rng.integers(len(left)))])


def best(texts: Sequence[str], question: Question) -> str:
    """Return the text of the largest :func:`contrast`, by chance among equals."""
    values = [contrast(text, question.trajectories) for text in texts]
    equals = [t for t, v in zip(texts, values, strict=True) if v == max(values)]
    rng = np.random.default_rng(question.seed)
    return equals[int(rng.integers(len(equals)))]


def contrast(text: str, trajectories: Sequence[Trajectory]) -> int:
    """Return how much more of a text's words occur in solved replies than in failed.

    Each different word of the text counts +1 if an observation has it, +1 if a solved
    reply has it and -1 if a failed one has it, where replies are read without the words
    of observations.
    """
    seen = {w for t in trajectories for o in t.observations for w in words(o)}

    def replies(solved: bool) -> set[str]:
        chosen = [t for t in trajectories if t.is_solved == solved]
        return {w for t in chosen for c in t.completions for w in words(c)} - seen

    of_text = set(words(text))
    return (
        len(of_text & seen)
        + len(of_text & replies(True))
        - len(of_text & replies(False))
    )
