"""Episodes as data without pickle, and back: what Learners read of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID

from rllib_llm.data import columns
from rllib_llm.data.episode_data import (
    EpisodeData,
    agent_episodes,
    episode_data,
    task_of,
)
from rllib_llm.data.types import (
    Choice,
    FinishReason,
    StopPolicy,
    StopReason,
    Task,
    Turn,
)
from rllib_llm.pictures.png import packed, packed_refs, unpacked, unpacked_refs


class RecordedPart:
    """One agent's part of an episode, made of a record.

    It has what the Learner's pipeline reads of a SingleAgentEpisode.

    Args:
        episode_id: Id of the episode.
        record: Entry of ``parts`` in a record of :func:`episode_record`.
        task: The rollout.
    """

    def __init__(self, episode_id: str, record: dict[str, Any], task: Task):
        self.id_, self.agent_id = episode_id, record["agent_id"]
        self.module_id: str = record["module_id"]
        self.is_truncated: bool = record["is_truncated"]
        self._rewards = list(record["rewards"])
        self._turns = [_turn(each) for each in record["turns"]]
        reason = record["stop_reason"]
        data = EpisodeData(
            task=task,
            agent_index=record["agent_index"],
            is_over=True,
            stop_reason=None if reason is None else StopReason(reason),
            stop_policy=StopPolicy(record["stop_policy"]),
            success=record["success"],
            masked_turns=frozenset(record["masked_turns"]),
            advantage=record["advantage"],
        )
        data.pictures = unpacked(record.get("pictures", ()))
        for turn in self._turns:
            data.enter_conversation(turn.conversation)
            data.record(turn)
        self.custom_data: dict[str, Any] = {columns.EPISODE_DATA: data}

    def __len__(self) -> int:
        """Return the number of turns."""
        return len(self._turns)

    def env_steps(self) -> int:
        """Return the number of turns."""
        return len(self)

    def get_rewards(self) -> list[float]:
        """Return the reward of each turn. [H]"""
        return self._rewards

    def get_return(self) -> float:
        """Return the sum of the rewards."""
        return float(sum(self._rewards))

    def get_extra_model_outputs(self, key: str) -> list[Turn]:
        """Return the turns, RLlib's extra model outputs of the key "turn". [H]"""
        assert key == columns.TURN
        return self._turns


class RecordedGame:
    """An episode of several agents, made of a record.

    It has what the Learner's pipeline reads of a MultiAgentEpisode.

    Args:
        episode_id: Id of the episode.
        parts: Its agents' parts.
        task: The rollout.
    """

    def __init__(self, episode_id: str, parts: Sequence[RecordedPart], task: Task):
        self.id_ = episode_id
        self.agent_episodes = {part.agent_id: part for part in parts}
        self.custom_data = {columns.EPISODE_DATA: EpisodeData(task=task)}

    def __len__(self) -> int:
        """Return the number of turns of all agents."""
        return sum(map(len, self.agent_episodes.values()))

    def env_steps(self) -> int:
        """Return the number of turns of all agents."""
        return len(self)


def episode_record(episode: Any) -> dict[str, Any]:
    """Return an episode as values that :mod:`rllib_llm.json_state` encodes.

    Pictures are PNG files. Texts, ids of RLlib and durations are left out: Learners
    read tokens, and runs with the same seed have the same records.

    Args:
        episode: A finished episode, or one made by :func:`recorded_episode`.
    """
    return {
        "is_game": getattr(episode, "agent_episodes", None) is not None,
        "task": dataclasses.asdict(task_of(episode)),
        "parts": [_part_record(part) for part in agent_episodes(episode)],
    }


def recorded_episode(record: dict[str, Any]) -> RecordedPart | RecordedGame:
    """Return the episode of a record of :func:`episode_record`."""
    task = Task(**record["task"])
    # Unique in a run: tasks are numbered.
    name = f"{task.group_id}-{task.rollout}"
    parts = [RecordedPart(name, each, task) for each in record["parts"]]
    return RecordedGame(name, parts, task) if record["is_game"] else parts[0]


def _part_record(part: Any) -> dict[str, Any]:
    data = episode_data(part)
    record = {
        "agent_id": part.agent_id or DEFAULT_AGENT_ID,
        "module_id": part.module_id or DEFAULT_MODULE_ID,
        "agent_index": data.agent_index,
        "is_truncated": bool(part.is_truncated),
        "rewards": [float(reward) for reward in part.get_rewards()],
        "stop_reason": None if data.stop_reason is None else str(data.stop_reason),
        "stop_policy": str(data.stop_policy),
        "success": data.success,
        "masked_turns": sorted(data.masked_turns),
        "advantage": data.advantage,
        "turns": [
            _turn_record(turn) for turn in part.get_extra_model_outputs(columns.TURN)
        ],
    }
    if data.pictures:
        record["pictures"] = packed(data.pictures)
    return record


def _turn_record(turn: Turn) -> dict[str, Any]:
    fields = {f.name: getattr(turn, f.name) for f in dataclasses.fields(Turn)}
    del fields["seconds"]
    if turn.images:
        fields["images"] = packed_refs(turn.images)
    else:  # as records of text were before there were pictures
        del fields["images"]
    if turn.allowed is None:
        del fields["allowed"]
    fields["finish"] = str(turn.finish)
    if turn.choice is not None:
        choice = turn.choice
        fields["choice"] = [choice.others, choice.weights, choice.expert_probs]
    return fields


def _turn(record: dict[str, Any]) -> Turn:
    choice = record["choice"]
    return Turn(
        **{
            **record,
            "finish": FinishReason(record["finish"]),
            "images": unpacked_refs(record.get("images", ())),
            "choice": None if choice is None else Choice(*choice),
        }
    )


def mean_advantage_size(episode: Any) -> float:
    """Return the mean magnitude of an episode's advantages, over agents' turns."""
    sizes = []
    for part in agent_episodes(episode):
        advantage = episode_data(part).advantage
        if advantage is not None:
            per_turn = np.broadcast_to(np.asarray(advantage, float), len(part))
            sizes.append(np.abs(per_turn))
    return float(np.concatenate(sizes).mean()) if sizes else 0.0
