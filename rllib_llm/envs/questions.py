"""Environments whose agents can answer the question of a user."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class AnswersQuestions(Protocol):
    """Multi-agent environment that plays an episode on a user's text.

    ``rllib-llm serve`` offers the agents of such an environment as one model.

    Attributes:
        answer: The agents' answer; None before the end of the episode.
    """

    answer: str | None

    def ask(self, question: str) -> None:
        """Make the next episode one on this text, in place of a task."""
