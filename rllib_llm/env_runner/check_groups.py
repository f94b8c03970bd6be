"""Check that the rollouts of a group play the same task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from rllib_llm.data.types import Task

_MAX_CHARS = 80  # of each text in the message


def check_first_texts(episodes: Iterable[Any], env: object) -> None:
    """Check that all rollouts of a group began with the same texts.

    Rollouts of a group share seed and options, and group-relative advantages compare
    their returns as those of one task.

    Args:
        episodes: Finished episodes; groups may be incomplete.
        env: The config's environment, named in the message.

    Raises:
        EnvContractError: If two rollouts of a group began with different texts.
    """
    firsts: dict[Any, EpisodeData] = {}
    for episode in episodes:
        data = episode_data(episode)
        if data.task is None:
            continue
        # Compared with the first finished rollout; which one that is does not matter.
        first = firsts.setdefault(data.task.group_id, data)
        for agent, text in data.first_texts.items():
            other = first.first_texts.get(agent)
            if other != text:
                raise EnvContractError(_message(data.task, agent, other, text, env))


def _message(task: Task, agent: str, one: str | None, two: str, env: object) -> str:
    name = task.environment or env
    name = name if isinstance(name, str) else getattr(name, "__name__", repr(name))
    return (
        f"Rollouts of group {task.group_id} (seed {task.seed}) of the environment "
        f"{name} began with different texts for {agent}: {_clip(one)} and {_clip(two)}."
        " All rollouts of a group must play the same task, otherwise their returns "
        "cannot be compared. Environments run in threads of one process: draw all "
        "random numbers from the rng or seed of reset(). If a library uses the global "
        "state of random, numpy.random or torch, call it inside "
        "rllib_llm.envs.IsolatedRandomState(seed).swapped_in(), or set "
        "rollouts(env_processes=True). `rllib-llm check` names the call."
    )


def _clip(text: str | None) -> str:
    if text is None or len(text) <= _MAX_CHARS:
        return repr(text)
    return repr(text[:_MAX_CHARS]) + "..."
