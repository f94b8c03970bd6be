"""Requests of a program to a policy, and the policy's replies.

They replace texts between the environment ``agent-v0`` and the connectors: an info
holds a :class:`ModelRequest`, and the action is a :class:`ModelReply`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.data.types import FinishReason

MODEL_REQUEST = "model_request"
"""Key of a ModelRequest in an environment's info."""


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an assistant's message.

    Attributes:
        call_id: Identifier that the result of the call refers to.
        name: Name of the tool.
        arguments: Arguments as JSON with sorted keys, or the text as it was given if it
            is not JSON.
    """

    call_id: str
    name: str
    arguments: str


@dataclasses.dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a request.

    Attributes:
        role: ``"system"``, ``"user"``, ``"assistant"`` or ``"tool"``.
        content: Its text, "" for an assistant's message with calls only.
        tool_calls: Calls of an assistant's message.
        call_id: The call that a tool's message answers.
        name: Name of that call's tool.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for one turn of a policy.

    Attributes:
        messages: The messages since the conversation's last reply if ``continues``,
            else the whole conversation.
        conversation: Number of the conversation among those with this policy.
        continues: Whether the conversation's recorded tokens are kept as a prefix.
        tools: JSON schemas of the tools that the policy may call.
        prompt: Text or token ids to complete, in place of messages: the new ones if
            ``continues``.
        max_tokens: Maximum tokens of the turn, beside the policy's own limit.
        stop: Strings that end the turn; the reply does not contain them.
        seed: Replaces the turn's number in its sampling seed.
        sample: Number of the reply among those to the same request.
        wants_token_texts: Whether the reply needs the text of every token.
    """

    messages: tuple[ChatMessage, ...] = ()
    conversation: int = 0
    continues: bool = False
    tools: Sequence[dict[str, Any]] | None = None
    prompt: str | tuple[int, ...] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    sample: int = 0
    wants_token_texts: bool = False

    def seed_parts(self, agent_index: int) -> tuple[int, ...]:
        """Return the parts of the turn's seed that replace its number."""
        assert self.seed is not None, "The request has no seed."
        # -1 separates them from the seeds of turns without a seed of their own.
        return (-1, self.seed, self.sample, agent_index)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelReply:
    """A policy's reply to a ModelRequest.

    Attributes:
        text: Text without thinking and without the stop string that ended it.
        raw_text: Text as it was sampled.
        finish: Reason that the turn ended.
        prompt_tokens: Tokens before the turn, in its conversation.
        token_ids: Sampled tokens. int32 [T]
        logps: Their log-probabilities under the distribution sampled from, in nats.
            float32 [T]
        token_texts: Text that each token adds, if the request wants it. [T]
        inner_tokens: Number of sampled tokens that the reply does not hold: those of a
            team's inner conversation.
    """

    text: str
    raw_text: str
    finish: FinishReason = FinishReason.STOP
    prompt_tokens: int = 0
    token_ids: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.int32)
    )
    logps: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.float32)
    )
    token_texts: tuple[str, ...] = ()
    inner_tokens: int = 0
