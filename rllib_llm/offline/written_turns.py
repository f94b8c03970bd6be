"""Turns whose texts were written, not sampled."""

from __future__ import annotations

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.data.types import FinishReason, Prompt, Turn
from rllib_llm.envs.spaces import UnicodeText


def started_episode(observation: str) -> SingleAgentEpisode:
    """Return an episode without turns."""
    space = UnicodeText()
    episode = SingleAgentEpisode(observation_space=space, action_space=space)
    episode.add_env_reset(observation=observation, infos={})
    return episode


def add_written_turn(
    episode: SingleAgentEpisode,
    prompt: Prompt,
    completion: str,
    renderer: ChatRenderer,
    *,
    observation: str = "",
    reward: float = 0.0,
    is_last: bool,
) -> None:
    """Append a turn whose text was not sampled.

    Args:
        episode: The episode so far.
        prompt: Tokens before the turn.
        completion: Text of the turn.
        renderer: Encodes it.
        observation: Next observation.
        reward: The turn's reward.
        is_last: Whether the episode ends with it.
    """
    data, action = episode_data(episode), renderer.encode_reply(completion)
    turn = Turn(
        prompt_ids=np.asarray(prompt.ids, np.int32),
        extends=prompt.extends,
        action_ids=np.asarray(action, np.int32),
        action_logps=np.zeros(len(action), np.float32),
        finish=FinishReason.STOP,
        conversation=data.conversation,
    )
    data.messages.append({"role": "assistant", "content": completion})
    data.record(turn)
    episode.add_env_step(
        observation=observation,
        action=completion,
        reward=reward,
        infos={},
        terminated=is_last,
        extra_model_outputs={columns.TURN: turn},
    )


def next_prompt(data: EpisodeData, renderer: ChatRenderer) -> Prompt:
    """Return the prompt of the next turn after ``data.messages``."""
    if not data.ids:
        return Prompt(renderer.first(data.messages, data.tools), extends=True)
    return renderer.next(
        data.messages, data.ids, last_sampled_id=data.ids[-1], tools=data.tools
    )
