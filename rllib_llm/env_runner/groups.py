"""Whether the rollouts of a group play the same task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.errors import EnvContractError

_SHOWN = 80  # characters of a text


def check_first_texts(episodes: Iterable[Any], env: Any) -> None:
    """Refuse groups whose rollouts began with different texts.

    They share seed and options, and their returns are compared as those of one task.

    Args:
        episodes: Finished ones, groups complete or not.
        env: The config's environment, for the message.

    Raises:
        EnvContractError: Naming the group, the environment and the remedies.
    """
    firsts: dict[Any, EpisodeData] = {}
    for episode in episodes:
        data = episode_data(episode)
        if data.task is None:
            continue
        first = firsts.setdefault(data.task.group_id, data)
        for agent, text in data.first_texts.items():
            other = first.first_texts.get(agent)
            if other != text:
                raise EnvContractError(_message(data.task, agent, other, text, env))


def _message(task: Any, agent: str, one: str | None, two: str, env: Any) -> str:
    name = env if isinstance(env, str) else getattr(env, "__name__", repr(env))
    return (
        f"Rollouts of group {task.group_id} (seed {task.seed}) of the environment "
        f"{name} began with different texts for {agent}: {_clip(one)} and {_clip(two)}."
        " All of a group must play the same task, or their returns cannot be compared. "
        "Environments run in threads of one process: draw everything from the rng or "
        "seed of reset(); where a library seeds or draws from the modules random, "
        "numpy.random or torch, make its calls inside of "
        "rllib_llm.envs.OwnRandomState(seed).swapped_in(), or set "
        "rollouts(env_processes=True). `rllib-llm check` shows which call it is."
    )


def _clip(text: str | None) -> str:
    if text is None or len(text) <= _SHOWN:
        return repr(text)
    return repr(text[:_SHOWN]) + "..."
