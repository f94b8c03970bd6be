"""From log-probabilities of whole replies to a policy over words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rllib_llm.data.types import Message
from rllib_llm.selfplay.queries import ActionProbs

WordLogProbs = Callable[
    [Sequence[list[Message]], Sequence[list[str]]], Sequence[Sequence[float]]
]
"""Log-probabilities of words as complete replies, in nats.

Takes a batch of conversations that end with a user message, and for each its words.
Returns for each the log-probability that the reply is exactly the word: the sum over
its tokens, the end of the turn included.
"""


def word_probs(log_probs: WordLogProbs) -> ActionProbs:
    """Make a policy over words of a model's log-probabilities.

    The probabilities are those of the model, given that it says one of the words and
    nothing else.

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
