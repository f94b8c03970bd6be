"""Stored conversations as episodes with Turn records, like sampled ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ray.util import log_once

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data.episode_data import num_tokens
from rllib_llm.offline.conversation_files import StoredConversation
from rllib_llm.offline.episode_rows import StoredEpisode, StoredTurn
from rllib_llm.offline.episode_units import stored_episode_unit
from rllib_llm.offline.written_turns import written_part

if TYPE_CHECKING:
    from rllib_llm.algorithms.algorithm import LLMAlgorithm

logger = logging.getLogger("rllib_llm")


class RowsInPasses(Protocol):
    """Rows in an endless sequence, as RowFile gives them."""

    def in_passes(self, seed: int, first: int, count: int) -> list[Any]:
        """Return the rows ``first`` to ``first + count``."""


def next_stored(
    algo: LLMAlgorithm,
    rows: RowsInPasses,
    as_unit: Callable[[Any, ChatRenderer, str | None], Any],
) -> list[Any]:
    """Return an iteration's units of stored rows; count those that are too long.

    Args:
        algo: The algorithm; its task source counts rows, as part of checkpoints.
        rows: The rows.
        as_unit: Makes an episode, or several that belong together, of a row.
    """
    count, source = algo.config.episodes_per_iteration, algo._task_source
    first = source.cursor
    source.next_groups(count)
    return units_of_rows(algo, rows, as_unit, first, count)


def units_of_rows(
    algo: LLMAlgorithm,
    rows: RowsInPasses,
    as_unit: Callable[[Any, ChatRenderer, str | None], Any],
    first: int,
    count: int,
) -> list[Any]:
    """Return units of the rows ``first`` to ``first + count``; count those too long.

    Args:
        algo: The algorithm.
        rows: The rows.
        as_unit: Makes an episode, or several that belong together, of a row.
        first: Number of the first row in the endless sequence.
        count: Number of rows.
    """
    config = algo.config
    renderer, longest = config.chat_renderer(), config.resolved_context_tokens()
    units = [
        as_unit(row, renderer, config.system_prompt)
        for row in rows.in_passes(config.seed or 0, first, count)
    ]
    kept = [unit for unit in units if _longest(unit) <= longest]
    skipped = len(units) - len(kept)
    algo.metrics.log_value("num_conversations_too_long", skipped, reduce="sum")
    if skipped and log_once("conversations_too_long"):
        logger.warning(
            "%d of %d stored rows are longer than max_context_tokens=%d and are left "
            "out (metric num_conversations_too_long).",
            skipped,
            len(units),
            longest,
        )
    return kept


def _longest(unit: Any) -> int:
    parts = getattr(unit, "agent_episodes", {None: unit}).values()
    return max(num_tokens(part) for part in parts)


def conversation_episode(
    stored: StoredConversation | StoredEpisode,
    renderer: ChatRenderer,
    system_prompt: str | None = None,
) -> Any:
    """Return a stored conversation or episode as an episode with Turn records.

    Args:
        stored: The row of a data file.
        renderer: Renders its messages.
        system_prompt: System message of conversations without one.

    Raises:
        ConfigError: The template cannot list the conversation's tools, or ids are of
            another tokenizer and there are no messages.
    """
    if isinstance(stored, StoredEpisode):
        return stored_episode_unit(stored, renderer, system_prompt)
    turns, start = [], 0
    replies = [i for i, m in enumerate(stored.messages) if m["role"] == "assistant"]
    for at, is_trained in zip(replies, stored.trained, strict=True):
        reply = stored.messages[at]["content"]
        turns.append(
            StoredTurn(stored.messages[start:at], reply, train=is_trained),
        )
        start = at + 1
    return written_part(
        turns,
        renderer,
        system_prompt,
        tools=stored.tools,
        pictures=stored.pictures,
    )
