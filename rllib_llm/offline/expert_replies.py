"""Replies of the scripted expert at the places that an agent's episodes visited."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Message
from rllib_llm.envs.go_to import replay
from rllib_llm.offline.corrections import Row, messages_by_turn

_STREAM = 2  # of the expert's random numbers; demonstrations draw from stream 1


def expert_replies(
    env: Any, episode: Any, trajectory: Trajectory, turns: Collection[int]
) -> Iterator[Row]:
    """Yield a conversation for each turn: all before it, then the expert's reply.

    The replies before it are the agent's own and are not trained. So the expert is
    imitated where the agent goes, also after its errors (DAgger, Ross et al. 2011,
    arXiv:1011.0686). The episode's texts are played again to get there. Turns after an
    empty reply, which files of conversations cannot hold, have none.

    Args:
        env: An environment of the episode's kind with ``expert_action(rng)``.
        episode: RLlib's SingleAgentEpisode, which gives the texts.
        trajectory: The same episode, which gives its task and its messages.
        turns: Numbers of the turns.

    Yields:
        Rows of data files: ``messages``, the agent's replies with ``train: false``.

    Raises:
        EnvContractError: If the environment returns other texts than before.
    """
    if not turns:
        return
    task, last = trajectory.task, max(turns)
    places = replay(
        env,
        seed=task.seed,
        options=dict(task.options),
        actions=episode.get_actions()[:last],
        observations=episode.get_observations()[: last + 1],
    )
    rng = np.random.default_rng([task.seed, task.rollout, _STREAM])
    messages = messages_by_turn(trajectory)
    before: list[Message | dict[str, Any]] = []
    for turn in places:
        *prompt, reply = messages[turn]
        before += prompt
        if turn in turns:
            best = env.unwrapped.expert_action(rng)
            yield {"messages": [*before, {"role": "assistant", "content": best}]}
        if not reply["content"].strip():
            return
        before.append({**reply, "train": False})
