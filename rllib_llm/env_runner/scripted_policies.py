"""Scripted policies: functions that act for agents, e.g. heuristics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rllib_llm.data.types import FinishReason, Message, Turn
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from rllib_llm.env_runner.recorder import AgentState

_NO_IDS = np.zeros(0, np.int32)
_NO_LOGPS = np.zeros(0, np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """Input of a scripted policy.

    Attributes:
        agent_id: The agent that it acts for.
        observation: The agent's last observation.
        messages: The agent's whole conversation, the observation last.
        rng: Seeded from the task: the same episode gives the same random numbers.
    """

    agent_id: str
    observation: str
    messages: list[Message]
    rng: np.random.Generator


Script = Callable[[ScriptedTurn], str]


@dataclasses.dataclass(slots=True)
class _TextTurn(Turn):
    """Turn without tokens, so that the loss covers nothing of it."""

    text: str = ""


def scripted_turn(script: Script, agent_state: AgentState, seed: int) -> _TextTurn:
    """Call ``script`` on the agent's last observation and record its reply.

    Raises:
        EnvContractError: If ``script`` does not return text.
    """
    messages = agent_state.data.messages
    scripted_input = ScriptedTurn(
        agent_state.agent_id,
        messages[-1]["content"],
        messages,
        # A new generator per turn, so that a repeated episode draws the same numbers.
        np.random.default_rng(seed),
    )
    text = script(scripted_input)
    if not isinstance(text, str):
        raise EnvContractError(
            f"The script of {agent_state.module_id!r} returned {text!r}; a script "
            "must return the agent's next message as str."
        )
    # No connector decodes a turn without tokens, so the message is appended here.
    messages.append({"role": "assistant", "content": text})
    return _TextTurn(
        prompt_ids=_NO_IDS,
        extends=True,
        action_ids=_NO_IDS,
        action_logps=_NO_LOGPS,
        finish=FinishReason.STOP,
        module_id=agent_state.module_id,
        text=text,
    )
