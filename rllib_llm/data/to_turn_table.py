"""Conversion of RLlib episodes to the trajectories that driver components read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID

from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, agent_episodes, episode_data
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import StopPolicy


def trajectories(episodes: Iterable[Any]) -> list[tuple[EpisodeData, Trajectory]]:
    """Return every agent's trajectory, together with the episode's data."""
    return [
        (episode_data(part), _trajectory(part, number))
        for number, episode in enumerate(episodes)
        for part in agent_episodes(episode)
    ]


def _trajectory(part: Any, number: int) -> Trajectory:
    data = episode_data(part)
    assert data.task is not None  # the EnvRunner sets it before the first turn
    turns = part.get_extra_model_outputs(columns.TURN)
    observations = [str(o) for o in part.get_observations()]
    return Trajectory(
        task=data.task,
        episode=number,
        agent=data.agent_index,
        agent_id=part.agent_id or DEFAULT_AGENT_ID,
        module_id=part.module_id or DEFAULT_MODULE_ID,
        observations=observations[: len(turns)],
        completions=[str(a) for a in part.get_actions()],
        rewards=[float(r) for r in part.get_rewards()],
        steps=[turn.env_t for turn in turns],
        num_tokens=[len(turn.action_ids) for turn in turns],
        invalid=[turn.invalid for turn in turns],
        infos=[dict(info) for info in part.get_infos()[1 : len(turns) + 1]],
        metrics=data.metrics,
        success=data.success,
        stop_reason=data.stop_reason,
        is_trained=data.stop_policy is not StopPolicy.MASK,
        greedy_return=data.greedy_return,
    )
