"""Stored conversations as episodes with Turn records, like sampled ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.util import log_once

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data.episode_data import episode_data, num_tokens
from rllib_llm.data.types import Message
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import StoredConversation
from rllib_llm.offline.written_turns import (
    add_written_turn,
    next_prompt,
    started_episode,
)

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
    stored: StoredConversation,
    renderer: ChatRenderer,
    system_prompt: str | None = None,
) -> SingleAgentEpisode:
    """Return a stored conversation as an episode with Turn records.

    Args:
        stored: The conversation.
        renderer: Renders its messages.
        system_prompt: System message of conversations without one.

    Raises:
        ConfigError: The template cannot list the conversation's tools.
    """
    messages = _for_template(stored, renderer)
    if system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    episode = started_episode(_read_before(messages, replies[0]))
    data = episode_data(episode)
    data.tools = stored.tools
    data.masked_turns = frozenset(
        turn for turn, is_trained in enumerate(stored.trained) if not is_trained
    )
    start = 0
    for turn, at in enumerate(replies):
        data.messages += messages[start:at]
        is_last = at == replies[-1]
        after = "" if is_last else _read_before(messages, replies[turn + 1])
        add_written_turn(
            episode,
            next_prompt(data, renderer),
            messages[at]["content"],
            renderer,
            observation=after,
            is_last=is_last,
        )
        start = at + 1
    return episode


def _for_template(stored: StoredConversation, renderer: ChatRenderer) -> list[Message]:
    """Return the messages in roles that the template has."""
    if renderer.tool_format is not None:
        return [dict(message) for message in stored.messages]
    if stored.tools:
        raise ConfigError(
            "A stored conversation has tools, which this model's chat template cannot "
            "list. Describe them in the system message, or use another model."
        )
    return [
        {**m, "role": "user"} if m["role"] == "tool" else dict(m)
        for m in stored.messages
    ]


def _read_before(messages: Sequence[Message], reply: int) -> str:
    """Return the text that a reply answers."""
    read = []
    for message in reversed(messages[:reply]):
        if message["role"] in ("assistant", "system"):
            break
        read.append(message["content"])
    return "\n".join(reversed(read))
