"""Pairs and labelled conversations of data files, as units of Pref."""

from __future__ import annotations

from rllib_llm.algorithms.pref.pairs import LabelledEpisode, PreferencePair
from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data.episode_data import num_tokens
from rllib_llm.offline.conversation_files import StoredLabelled, StoredPair
from rllib_llm.offline.stored_episodes import RowsInPasses, conversation_episode


def stored_pair(
    pair: StoredPair,
    renderer: ChatRenderer,
    system_prompt: str | None = None,
    *,
    after_fork: bool = False,
) -> PreferencePair:
    """Return a stored pair as episodes with Turn records."""
    return PreferencePair(
        conversation_episode(pair.chosen, renderer, system_prompt),
        conversation_episode(pair.rejected, renderer, system_prompt),
        after_fork=after_fork,
    )


class WithNeighbours:
    """Rows, each with the row before it in its iteration, whose reply it borrows.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: RowsInPasses):
        self._rows = rows

    def in_passes(
        self, seed: int, first: int, count: int
    ) -> list[tuple[StoredLabelled, StoredLabelled]]:
        """Return an iteration's rows with their neighbours; see RowFile."""
        rows = self._rows.in_passes(seed, first, count)
        return list(zip(rows, [*rows[-1:], *rows[:-1]], strict=True))


def stored_labelled(
    rows: tuple[StoredLabelled, StoredLabelled],
    renderer: ChatRenderer,
    system_prompt: str | None = None,
    *,
    max_tokens: int,
) -> LabelledEpisode:
    """Return a stored conversation with its label, and one for the KL divergence.

    Args:
        rows: The conversation, and another one, whose reply follows its prompt in the
            second episode.
        renderer: Renders the messages.
        system_prompt: System message of conversations without one.
        max_tokens: Longer second episodes are left out.
    """
    row, other = rows
    episode = conversation_episode(row.conversation, renderer, system_prompt)
    mismatched = conversation_episode(
        row.conversation.with_reply_of(other.conversation), renderer, system_prompt
    )
    return LabelledEpisode(
        episode,
        row.desirable,
        mismatched if num_tokens(mismatched) <= max_tokens else None,
    )
