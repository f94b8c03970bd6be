"""Turns whose texts were written, not sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.data.types import FinishReason, Message, Prompt, Turn
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError
from rllib_llm.offline.episode_rows import StoredTurn
from rllib_llm.pictures.contract import Pictures


def written_part(
    turns: Sequence[StoredTurn],
    renderer: ChatRenderer,
    system_prompt: str | None = None,
    *,
    tools: list[dict[str, Any]] | None = None,
    pictures: Pictures | None = None,
) -> SingleAgentEpisode:
    """Return one agent's turns of a file, rendered, as an episode with Turn records.

    Args:
        turns: The turns, each with messages.
        renderer: Renders them.
        system_prompt: System message of conversations without one.
        tools: JSON schemas of the tools that the template presents.
        pictures: Pictures that messages name by their digests.

    Raises:
        ConfigError: The template cannot list the tools.
    """
    if tools and renderer.tool_format is None:
        raise ConfigError(
            "A stored conversation has tools, which this model's chat template cannot "
            "list. Describe them in the system message, or use another model."
        )
    episode = started_episode(_read(turns[0].messages))
    data = episode_data(episode)
    data.pictures = dict(pictures or {})
    data.masked_turns = frozenset(i for i, t in enumerate(turns) if not t.train)
    for number, turn in enumerate(turns):
        data.enter_conversation(turn.conversation)
        messages = list(_for_template(turn.messages, renderer))
        if not data.ids:
            data.tools = tools
            if system_prompt is not None and messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": system_prompt})
        data.messages += messages
        is_last = number == len(turns) - 1
        add_written_turn(
            episode,
            next_prompt(data, renderer),
            turn.completion,
            renderer,
            observation="" if is_last else _read(turns[number + 1].messages),
            reward=turn.reward,
            finish=turn.finish,
            env_t=turn.step,
            is_last=is_last,
        )
    return episode


def _for_template(
    messages: Iterable[Message], renderer: ChatRenderer
) -> Iterable[Message]:
    """Return the messages in roles that the template has."""
    for message in messages:
        is_result = message["role"] == "tool" and renderer.tool_format is None
        yield {**message, "role": "user"} if is_result else dict(message)


def _read(messages: Sequence[Message]) -> str:
    """Return the text that a reply answers."""
    read: list[str] = []
    for message in reversed(messages):
        if message["role"] in ("assistant", "system"):
            break
        read.append(message["content"])
    return "\n".join(reversed(read))


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
    finish: FinishReason = FinishReason.STOP,
    env_t: int = 0,
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
        finish: ``LENGTH`` for a text that was cut before its end of turn.
        env_t: Environment step of the turn.
        is_last: Whether the episode ends with it.
    """
    data, action = episode_data(episode), renderer.encode_reply(completion)
    if finish is FinishReason.LENGTH:
        action = action[:-1]
    turn = Turn(
        prompt_ids=np.asarray(prompt.ids, np.int32),
        images=prompt.images,
        extends=prompt.extends,
        action_ids=np.asarray(action, np.int32),
        action_logps=np.zeros(len(action), np.float32),
        finish=finish,
        env_t=env_t,
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
        return renderer.opened(data.messages, data.tools)
    return renderer.next(
        data.messages, data.ids, last_sampled_id=data.ids[-1], tools=data.tools
    )
