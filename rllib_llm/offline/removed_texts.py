"""Removal of a text from the prompts of data files, e.g. of a hint."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rllib_llm.data.types import Message
from rllib_llm.envs.dataset.dataset_rows import RowError
from rllib_llm.errors import ConfigError
from rllib_llm.offline.conversation_files import (
    StoredConversation,
    StoredLabelled,
    StoredPair,
)
from rllib_llm.offline.episode_rows import StoredAgent, StoredEpisode


def check_removed(pattern: str) -> None:
    """Check ``data.remove``.

    Raises:
        ConfigError: It is not a regular expression, or it matches an empty text.
    """
    try:
        is_empty = re.compile(pattern).search("") is not None
    except re.error as error:
        raise ConfigError(
            f"data.remove={pattern!r} is not a regular expression: {error}. Correct it."
        ) from error
    if is_empty:
        raise ConfigError(
            f"data.remove={pattern!r} matches an empty text, and therefore everywhere. "
            "Write the text that is to be removed, e.g. '\\nHint: .*'."
        )


def without_text(row: Any, pattern: str) -> tuple[Any, bool]:
    """Return a row without the parts of its prompts that match, and whether any did.

    Replies stay as they are. Agents whose prompts change have no ids any more, so that
    they are rendered anew.

    Args:
        row: A conversation, a saved episode, a pair, or a labelled conversation.
        pattern: Regular expression.

    Raises:
        RowError: Nothing is left of a message.
    """
    if isinstance(row, StoredEpisode):
        agents = [_agent(agent, pattern) for agent in row.agents]
        changed = agents != row.agents
        return dataclasses.replace(row, agents=agents), changed
    if isinstance(row, StoredPair):
        chosen, in_chosen = without_text(row.chosen, pattern)
        rejected, in_rejected = without_text(row.rejected, pattern)
        return StoredPair(chosen, rejected), in_chosen or in_rejected
    if isinstance(row, StoredLabelled):
        conversation, changed = without_text(row.conversation, pattern)
        return StoredLabelled(conversation, row.desirable), changed
    assert isinstance(row, StoredConversation)
    messages = _messages(row.messages, pattern)
    changed = messages != row.messages
    return dataclasses.replace(row, messages=messages), changed


def _agent(agent: StoredAgent, pattern: str) -> StoredAgent:
    turns = [
        dataclasses.replace(turn, messages=_messages(turn.messages, pattern))
        for turn in agent.turns
    ]
    if turns == agent.turns:
        return agent
    # The ids are those of the text that was read, hint included.
    bare = [
        dataclasses.replace(turn, prompt_ids=None, action_ids=None, action_logps=None)
        for turn in turns
    ]
    return dataclasses.replace(agent, turns=bare, tokenizer=None)


def _messages(messages: Sequence[Message], pattern: str) -> list[Message]:
    edited = [
        message
        if message["role"] == "assistant"
        else {**message, "content": _compiled(pattern).sub("", message["content"])}
        for message in messages
    ]
    for before, after in zip(messages, edited, strict=True):
        if before["content"].strip() and not after["content"].strip():
            raise RowError(
                f"data.remove={pattern!r} leaves nothing of the {before['role']}'s "
                "message."
            )
    return edited


@lru_cache(maxsize=8)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
