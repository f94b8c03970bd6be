"""Rows of sampled episodes in the package's file format (episode_rows.py)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, agent_episodes, episode_data
from rllib_llm.data.model_calls import MODEL_REQUEST
from rllib_llm.data.types import Message, Turn
from rllib_llm.offline.episode_rows import VERSION
from rllib_llm.pictures.png import packed, packed_refs


def episode_row(
    episode: Any,
    fingerprints: Mapping[str, str],
    *,
    env: str,
    iteration: int | None = None,
    untrained: Mapping[int, Collection[int]] | None = None,
) -> dict[str, Any]:
    """Return a finished episode as a row.

    Args:
        episode: The episode, with the turns of its language models.
        fingerprints: Fingerprint of each policy's tokenizer, by ModuleID.
        env: Name of the environment.
        iteration: Training iteration that sampled it.
        untrained: Indices of the turns with ``train: false``, by agent index.
    """
    data = episode_data(episode)
    task = data.task
    return {
        "version": VERSION,
        "id": episode.id_,
        "source": data.source,
        "iteration": iteration,
        "task": None
        if task is None
        else {
            "env": task.environment or env,
            "seed": task.seed,
            "options": task.options,
            "group_id": task.group_id,
            "rollout": task.rollout,
        },
        "return": float(episode.get_return()),
        "success": data.success,
        "stop_reason": None if data.stop_reason is None else data.stop_reason.value,
        "agents": [
            _agent_row(part, fingerprints, (untrained or {}))
            for part in agent_episodes(episode)
        ],
    }


def dump_row(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON without its end."""
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str)
    # A policy may sample halves of a surrogate pair, which UTF-8 cannot hold.
    return text.encode("utf-8", "replace").decode("utf-8")


def _agent_row(
    part: Any, fingerprints: Mapping[str, str], untrained: Mapping[int, Collection[int]]
) -> dict[str, Any]:
    data = episode_data(part)
    turns = part.get_extra_model_outputs(columns.TURN)
    module_id = part.module_id or DEFAULT_MODULE_ID
    masked = untrained.get(data.agent_index, ())
    texts = _texts_of_turns(part, turns, data)
    row = {
        "agent_id": part.agent_id,
        "module_id": module_id,
        "agent_index": data.agent_index,
        "tokenizer": fingerprints[module_id],
        "tools": None if data.tools is None else list(data.tools),
        "turns": [
            {
                "messages": messages,
                "completion": completion,
                "reward": float(reward),
                "train": number not in masked,
                **_tokens(turn),
            }
            for number, (turn, reward, (messages, completion)) in enumerate(
                zip(turns, part.get_rewards(), texts, strict=True)
            )
        ],
    }
    if data.pictures:  # rows of text are as they were before there were pictures
        row["pictures"] = packed(data.pictures)
    return row


def _tokens(turn: Turn) -> dict[str, Any]:
    # An action chosen as a whole has no log-probabilities of single tokens.
    logps = None
    if turn.choice is None:
        # The shortest text that is read as the same number.
        logps = [float(str(logp)) for logp in np.asarray(turn.action_logps, np.float32)]
    images = {"images": packed_refs(turn.images)} if turn.images else {}
    return {
        "finish": turn.finish.value,
        "conversation": turn.conversation,
        "step": turn.env_t,
        "weights_seq_no": turn.weights_seq_no,
        "prompt_ids": turn.prompt_ids.tolist(),
        "extends": turn.extends,
        "action_ids": turn.action_ids.tolist(),
        "action_logps": logps,
        **images,
    }


def _texts_of_turns(
    part: Any, turns: Sequence[Turn], data: EpisodeData
) -> list[tuple[list[Message] | None, str]]:
    """Return each turn's new messages and answer.

    There are no messages where none were rendered: for prompts of programs that are
    texts or tokens (docs/agent_programs.md).
    """
    conversations = {n: c.messages for n, c in data.other_conversations.items()}
    conversations[data.conversation] = data.messages
    left: dict[int, list[list[Message]]] = {}
    for number, messages in conversations.items():
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        count = sum(turn.conversation == number for turn in turns)
        if count and len(replies) >= count:
            # Earlier replies are examples in the first prompt.
            ends = [at + 1 for at in replies[-count:]]
            starts = [0, *ends[:-1]]
            left[number] = [messages[a:b] for a, b in zip(starts, ends, strict=True)]
    texts: list[tuple[list[Message] | None, str]] = []
    for number, turn in enumerate(turns):
        request = part.get_infos(number).get(MODEL_REQUEST)
        shown = left[turn.conversation].pop(0) if turn.conversation in left else None
        completion = part.get_actions(number) if shown is None else shown[-1]["content"]
        is_rendered = request is None or request.prompt is None
        news = shown[:-1] if shown is not None and is_rendered else None
        texts.append((news, str(getattr(completion, "raw_text", completion))))
    return texts
