"""Seats that a function plays: heuristics and fixed partners."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.data.types import FinishReason, Message, Turn
from rllib_llm.errors import EnvContractError

_NOTHING = np.zeros(0, np.int32)
_NO_LOGPS = np.zeros(0, np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """What a script knows when it must speak.

    Attributes:
        agent_id: The agent it speaks for.
        observation: What the agent has just been told.
        messages: Its whole conversation, the observation last.
        rng: Seeded from the task: the same episode gives the same words.
    """

    agent_id: str
    observation: str
    messages: list[Message]
    rng: np.random.Generator


Script = Callable[[ScriptedTurn], str]


@dataclasses.dataclass(slots=True)
class _SpokenTurn(Turn):
    """A turn without tokens, so that nothing of it is trained."""

    text: str = ""


def scripted_turn(script: Script, agent_state: Any, seed: int) -> _SpokenTurn:
    """Let ``script`` answer the seat's last observation.

    Raises:
        EnvContractError: If it returns anything but text.
    """
    messages = agent_state.data.messages
    told = ScriptedTurn(
        agent_state.agent_id,
        messages[-1]["content"],
        messages,
        np.random.default_rng(seed),
    )
    text = script(told)
    if not isinstance(text, str):
        raise EnvContractError(
            f"The script of {agent_state.module_id!r} returned {text!r}; it must "
            "return text."
        )
    messages.append({"role": "assistant", "content": text})
    return _SpokenTurn(
        prompt_ids=_NOTHING,
        extends=True,
        action_ids=_NOTHING,
        action_logps=_NO_LOGPS,
        finish=FinishReason.STOP,
        module_id=agent_state.module_id,
        text=text,
    )
