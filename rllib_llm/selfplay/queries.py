"""What a text policy is asked about a game, and what it answers."""

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

Takes a batch of conversations that end with a user message, and for each the words
that are legal. Returns for each the probability of every word, summing to 1: where a
model may also say other things, normalise over the words.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A decision: what the player has read and said so far, and what it may say.

    Attributes:
        texts: Prompts and the player's own answers in turn, from its first prompt to
            the one it must answer now. (Perfect recall makes them unique.)
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
        EnvContractError: If an answer is no distribution.
    """
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
            f"action_probs gave {values.tolist()} for the words {query.words} after "
            f"{query.texts[-1]!r}; it must give one probability for each, >= 0 and "
            "summing to 1. Normalise over the words."
        )
    return (values / values.sum()).tolist()
