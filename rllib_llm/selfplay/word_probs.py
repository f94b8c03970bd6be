"""Policy over words from the log-probabilities of complete replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rllib_llm.data.types import Message
from rllib_llm.selfplay.queries import ActionProbs

WordLogProbs = Callable[
    [Sequence[list[Message]], Sequence[list[str]]], Sequence[Sequence[float]]
]
"""Log-probabilities of words as complete replies, in nats.

Takes a batch of conversations that end with a user message, and the words of each.
Returns the log-probability of each word as the complete reply: the sum over its tokens
and the end of turn.
"""


def word_probs(log_probs: WordLogProbs) -> ActionProbs:
    """Return a policy over words from a model's log-probabilities.

    Its probabilities are the model's, conditional on a reply that is one of the words.

    Args:
        log_probs: The model.
    """

    def probabilities(
        conversations: Sequence[list[Message]], words: Sequence[list[str]]
    ) -> list[list[float]]:
        return [_softmax(row) for row in log_probs(conversations, words)]

    return probabilities


def _softmax(log_probs: Sequence[float]) -> list[float]:
    values = np.asarray(log_probs, dtype=np.float64)
    weights = np.exp(values - values.max())
    return (weights / weights.sum()).tolist()
