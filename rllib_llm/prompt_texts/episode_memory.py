"""Memory of one episode: texts of its earlier turns before its later messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rllib_llm.assistants.questions import transcript
from rllib_llm.data.added_texts import AddedText, LaterTexts
from rllib_llm.prompt_texts.asked import one_line
from rllib_llm.prompt_texts.bank import Bank, Retrieval, RetrievalSource


@dataclasses.dataclass(frozen=True)
class EpisodeMemory(RetrievalSource, LaterTexts):
    """A memory that begins empty in each episode; each turn writes a text.

    It is computed from the turns before, so that there is nothing to restore.

    Attributes:
        text: Text of a turn, with placeholders.
        max_chars: Longest text, in characters.
        capacity: Most texts; the oldest is deleted beyond it.
        similar: Similarity of two observations from which on the newer text replaces
            the older one; None: texts are added.
        retrieval: Settings of the search.
    """

    text: str
    max_chars: int
    capacity: int
    similar: float | None
    retrieval: Retrieval

    def texts_for(self, observation: str) -> list[AddedText]:
        """Return no texts: nothing was written before the first message."""
        return []

    def texts_later(
        self, observations: Sequence[str], replies: Sequence[str]
    ) -> list[AddedText]:
        """Return the texts of earlier turns for the newest observation, best first."""
        bank = Bank(self.capacity, self.similar)
        for turn in range(len(replies)):
            fields = text_fields(observations[: turn + 1], replies[: turn + 1])
            text = one_line(self.text.format(**fields), self.max_chars)
            # The turn in place of a return: the newer one replaces the older one.
            bank.write(observations[turn], text, float(turn))
        return bank.view(self.retrieval).texts_for(observations[-1])


def text_fields(
    observations: Sequence[str], replies: Sequence[str]
) -> Mapping[str, str]:
    """Return the placeholders of a text about turns, of which the last counts."""
    return {
        "task": observations[0],
        "observation": observations[-1],
        "reply": replies[-1],
        "replies": "\n".join(replies),
        "transcript": transcript(observations, replies),
    }
