"""Edits of a conversation: observations that an agent deletes from its context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rllib_llm.data.types import Message
from rllib_llm.errors import EnvContractError

DELETED = "deleted_observations"
"""Key of an environment's info: numbers of the observations to delete, from 1."""
MARKER = "(deleted)"
"""Text in the place of a deleted observation."""
_OBSERVED = ("user", "tool")


def delete_observations(messages: list[Message], numbers: Sequence[Any]) -> None:
    """Replace observations of a conversation by a marker.

    Messages keep their order and roles, so that chat templates accept them, and their
    numbers.

    Args:
        messages: The conversation, which is changed.
        numbers: Numbers of the observations to delete, from 1.

    Raises:
        EnvContractError: If a number is none of an observation.
    """
    places = [i for i, message in enumerate(messages) if message["role"] in _OBSERVED]
    for number in numbers:
        if not isinstance(number, int) or not 1 <= number <= len(places):
            raise EnvContractError(
                f"info[{DELETED!r}] has {number!r}, but the conversation has "
                f"{len(places)} observations, numbered from 1. Correct the environment."
            )
        place = places[number - 1]
        messages[place] = {**messages[place], "content": MARKER}
