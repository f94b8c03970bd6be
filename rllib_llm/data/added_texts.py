"""Texts added to messages of an episode, before the environment's own."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

HEADING = "Notes:"


@dataclasses.dataclass(frozen=True, slots=True)
class AddedText:
    """A text that an agent reads.

    Attributes:
        number: Its number among the texts of its component.
        text: The text.
    """

    number: int
    text: str


class TextSource(Protocol):
    """Source of the texts of an episode; it travels with tasks and does not change.

    Attributes:
        heading: The line before the texts.
        agents: AgentIDs that read them; None: all.
        options: Options of the environment that belong to them.
    """

    @property
    def heading(self) -> str:
        """Return the line before the texts."""
        ...

    @property
    def agents(self) -> frozenset[str] | None:
        """Return the AgentIDs that read them; None: all."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Return options of the environment that belong to them."""
        ...

    def texts_for(self, observation: str) -> list[AddedText]:
        """Return the texts for an agent whose first observation is given."""
        ...


class LaterTexts(abc.ABC):
    """Base class of sources that add texts to later messages as well."""

    @abc.abstractmethod
    def texts_later(
        self, observations: Sequence[str], replies: Sequence[str]
    ) -> list[AddedText]:
        """Return the texts before a later observation.

        Args:
            observations: The agent's observations so far, of which the last one is
                shown next. [H + 1]
            replies: Its replies so far. [H]
        """


@dataclasses.dataclass(frozen=True)
class FixedTexts:
    """The same texts for all observations.

    Attributes:
        texts: The texts, in order.
        heading: The line before them.
        agents: AgentIDs that read them; None: all.
        options: Options of the environment that belong to them.
    """

    texts: tuple[AddedText, ...]
    heading: str = HEADING
    agents: frozenset[str] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def texts_for(self, observation: str) -> list[AddedText]:
        """Return all texts."""
        return list(self.texts)


def with_texts(texts: Sequence[str], observation: str, heading: str = HEADING) -> str:
    """Return a message: the heading, one line for each text, the observation.

    Without texts it is the observation alone.
    """
    if not texts:
        return observation
    lines = "\n".join(f"- {text}" for text in texts)
    return f"{heading}\n{lines}\n\n{observation}"
