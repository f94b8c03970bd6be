"""Queries of a text policy's action probabilities in a game."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rllib_llm.data.types import Message
from rllib_llm.errors import EnvContractError

ActionProbs = Callable[
    [Sequence[list[Message]], Sequence[list[str]]], Sequence[Sequence[float]]
]
"""Probabilities of words under a policy.

Takes a batch of conversations that end with a user message, and the legal words of
each. Returns the probabilities of each conversation's words, summing to 1: if a model
may also give other replies, normalise over the words.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A player's decision: its conversation so far and its legal words.

    Attributes:
        texts: Prompts and the player's replies in turn, from its first prompt to the
            current one. (With perfect recall they are unique.)
        words: The legal words.
    """

    texts: tuple[str, ...]
    words: tuple[str, ...]

    def messages(self) -> list[Message]:
        """Return the texts as chat messages."""
        roles = ("user", "assistant")
        return [
            {"role": roles[i % 2], "content": text} for i, text in enumerate(self.texts)
        ]


def ask(
    queries: Iterable[Query], action_probs: ActionProbs, batch_size: int
) -> dict[Query, list[float]]:
    """Return the probability of each word of every different query.

    Args:
        queries: Decisions.
        action_probs: The policy. Called once for each batch of different decisions.
        batch_size: Decisions per call, >= 1.

    Raises:
        EnvContractError: If the result is not a distribution.
    """
    # Many histories share a decision; the policy is evaluated once for each.
    different = list(dict.fromkeys(queries))
    answers: dict[Query, list[float]] = {}
    for start in range(0, len(different), batch_size):
        batch = different[start : start + batch_size]
        given = action_probs(
            [query.messages() for query in batch], [list(q.words) for q in batch]
        )
        for query, probs in zip(batch, given, strict=True):
            answers[query] = _distribution(query, probs)
    return answers


def _distribution(query: Query, probs: Sequence[float]) -> list[float]:
    values = np.asarray(probs, dtype=np.float64)
    fits = values.shape == (len(query.words),) and np.isfinite(values).all()
    if not fits or values.min() < 0 or abs(values.sum() - 1) > 1e-4:
        raise EnvContractError(
            f"action_probs returned {values.tolist()} for the words {query.words} "
            f"after {query.texts[-1]!r}; it must return one probability per word, >= 0 "
            "and summing to 1. Normalise over the words."
        )
    # Sums of float32 probabilities differ from 1 by rounding, which NashConv would
    # include.
    return (values / values.sum()).tolist()
