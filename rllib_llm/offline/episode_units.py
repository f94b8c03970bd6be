"""Episodes of data files as episodes with Turn records."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.util import log_once

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.fingerprint import tokenizer_fingerprint
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.episode_records import RecordedGame, RecordedPart
from rllib_llm.data.types import StopPolicy, Task
from rllib_llm.errors import ConfigError
from rllib_llm.offline.episode_rows import StoredAgent, StoredEpisode, StoredTurn
from rllib_llm.offline.written_turns import written_part
from rllib_llm.pictures.png import packed_refs

logger = logging.getLogger("rllib_llm")

_NO_TASK = Task(group_id=0, rollout=0, seed=0)


def stored_episode_unit(
    stored: StoredEpisode, renderer: ChatRenderer, system_prompt: str | None = None
) -> Any:
    """Return an episode of a file with Turn records.

    Ids of the same tokenizer are used as they are; otherwise the texts are rendered.

    Args:
        stored: The episode.
        renderer: Renders texts.
        system_prompt: System message of conversations without one.

    Raises:
        ConfigError: A turn has neither ids of this tokenizer nor messages.
    """
    parts = [_part(stored, agent, renderer, system_prompt) for agent in stored.agents]
    for part in parts:
        data = episode_data(part)
        data.success, data.stop_reason = stored.success, stored.stop_reason
    if len(parts) == 1:
        return parts[0]
    return RecordedGame(stored.id or "stored", parts, _NO_TASK)


def _part(
    stored: StoredEpisode,
    agent: StoredAgent,
    renderer: ChatRenderer,
    system_prompt: str | None,
) -> RecordedPart | SingleAgentEpisode:
    if agent.pictures and renderer.pictures is None:
        raise ConfigError(
            f"episode {stored.id!r} shows pictures, but the policy's model reads text "
            "alone. Use language_model.model='tiny-vlm' or a folder of a "
            "vision-language model, or files without pictures."
        )
    ours = tokenizer_fingerprint(renderer.tokenizer)
    if agent.has_ids and agent.tokenizer == ours and _has_places(agent, renderer):
        return _recorded(stored, agent, renderer)
    for number, turn in enumerate(agent.turns):
        if not turn.messages:
            raise ConfigError(
                f"episode {stored.id!r}, turn {number}: it has no 'messages', and its "
                f"ids are those of the tokenizer {agent.tokenizer}, not of this "
                f"model's, {ours}. Use a model with that tokenizer."
            )
    if agent.has_ids and log_once(f"other_tokenizer_{agent.tokenizer}"):
        logger.warning(
            "The ids of stored episodes are those of the tokenizer %s, not of this "
            "model's, %s: their texts are rendered with this one.",
            agent.tokenizer,
            ours,
        )
    part = written_part(
        agent.turns,
        renderer,
        system_prompt,
        tools=agent.tools,
        pictures=agent.pictures,
    )
    if agent.agent_id is not None:
        part.agent_id, part.module_id = agent.agent_id, DEFAULT_MODULE_ID
        episode_data(part).agent_index = agent.agent_index
    return part


def _has_places(agent: StoredAgent, renderer: ChatRenderer) -> bool:
    """Return whether pictures have as many tokens as this model's."""
    spec = renderer.pictures
    count = 0 if spec is None else spec.count
    return all(ref.count == count for turn in agent.turns for ref in turn.images)


def _recorded(
    stored: StoredEpisode, agent: StoredAgent, renderer: ChatRenderer
) -> RecordedPart:
    """Return the part of an agent whose ids are of this tokenizer."""
    largest = max(max(t.prompt_ids or [0]) for t in agent.turns)
    largest = max(largest, *(max(t.action_ids or [0]) for t in agent.turns))
    if largest >= renderer.vocabulary:
        raise ConfigError(
            f"episode {stored.id!r} has the token id {largest}, but ids of its "
            f"tokenizer, {agent.tokenizer}, are below {renderer.vocabulary}. The file "
            "is damaged; write it again."
        )
    record = {
        "agent_id": agent.agent_id or DEFAULT_AGENT_ID,
        "module_id": DEFAULT_MODULE_ID,
        "agent_index": agent.agent_index,
        "is_truncated": False,
        "rewards": [turn.reward for turn in agent.turns],
        "stop_reason": None,
        "stop_policy": StopPolicy.TRAIN.value,
        "success": None,
        "masked_turns": [i for i, t in enumerate(agent.turns) if not t.train],
        "advantage": None,
        "turns": [_turn_fields(turn) for turn in agent.turns],
    }
    part = RecordedPart(stored.id or "stored", record, _NO_TASK)
    data = episode_data(part)
    data.pictures = dict(agent.pictures)
    last = agent.turns[-1].conversation
    for turn in agent.turns:
        if turn.conversation == last:
            data.messages += turn.messages
            data.messages.append({"role": "assistant", "content": turn.completion})
    data.tools = agent.tools
    return part


def _turn_fields(turn: StoredTurn) -> dict[str, Any]:
    assert turn.action_ids is not None
    logps = turn.action_logps
    return {
        "prompt_ids": np.asarray(turn.prompt_ids, np.int32),
        "extends": turn.extends,
        "action_ids": np.asarray(turn.action_ids, np.int32),
        "action_logps": np.zeros(len(turn.action_ids), np.float32)
        if logps is None
        else np.asarray(logps, np.float32),
        "images": packed_refs(turn.images),
        "finish": turn.finish,
        "env_t": turn.step,
        "conversation": turn.conversation,
        "choice": None,
    }
