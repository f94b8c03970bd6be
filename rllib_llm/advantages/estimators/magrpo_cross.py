"""MAGRPO's cross mode: what an agent's last text earns with what the others said."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.advantages.tree import marginal_rewards
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.errors import ConfigError

MOST_GAMES = 4096
"""Combinations of one joint turn beyond which rewarding them all is refused."""


def cross_gains(table: TurnTable, of_team: Callable[[Any], float]) -> np.ndarray:
    """Return how a trajectory's last text does with others than it met.

    The rollouts of a task that agree in all texts before each agent's last one stand
    at the same joint turn. All combinations of what their agents said there are played
    again, and a text's worth is the mean of the team's return over the combinations it
    stands in (:func:`~rllib_llm.advantages.tree.marginal_rewards`).

    Args:
        table: Whole groups, with ``replay``.
        of_team: The team's return, of its agents' returns.

    Returns:
        Worth minus the return of the team's own rollout. [N]

    Raises:
        ConfigError: If games cannot be played again, or too many would have to be.
    """
    replay = table.replay
    if replay is None:
        raise ConfigError(
            "magrpo with joint='cross' needs games that can be played again, which "
            "only GRPO offers. Use joint='aligned'."
        )
    earned = _of_episodes(table, of_team)
    gains = np.zeros(len(table))
    for turn in _multi_agent_turns(table):
        samples = [turn[agent] for agent in sorted(turn)]
        rewards = _rewards(table, samples, lambda met: of_team([*replay(met).values()]))
        _require_played(table, samples, rewards, earned)
        for sample, worths in zip(samples, marginal_rewards(rewards), strict=True):
            own = [earned[table.trajectories[i].episode] for i in sample]
            gains[sample] = worths - own
    return gains


def _rewards(
    table: TurnTable,
    samples: list[list[int]],
    play: Callable[[list[Trajectory]], float],
) -> np.ndarray:
    """Return the team's return of each combination, one axis per agent."""
    games = math.prod(map(len, samples))
    if games > MOST_GAMES:
        raise ConfigError(
            f"joint='cross' would play {games} games for one joint turn "
            f"({' x '.join(str(len(s)) for s in samples)} texts); at most {MOST_GAMES} "
            "are played. Use a smaller group_size, or joint='aligned'."
        )
    distinct, places = [], []
    for sample in samples:  # who said the same earns the same
        said = [table.trajectories[i] for i in sample]
        keys = [(*one.completions, *one.observations) for one in said]
        first = list(dict.fromkeys(keys))
        distinct.append([said[keys.index(key)] for key in first])
        places.append([first.index(key) for key in keys])
    rewards = np.empty([len(d) for d in distinct])
    for place in np.ndindex(rewards.shape):
        players = [d[k] for d, k in zip(distinct, place, strict=True)]
        rewards[place] = play(players)
    return rewards[np.ix_(*places)]


def _of_episodes(table: TurnTable, of_team: Callable[[Any], float]) -> dict[int, float]:
    parts: dict[int, list[float]] = {}
    for one in table.trajectories:
        parts.setdefault(one.episode, []).append(one.earned)
    return {episode: of_team(returns) for episode, returns in parts.items()}


def _multi_agent_turns(table: TurnTable) -> list[dict[int, list[int]]]:
    """Return, per joint turn that rollouts share, each agent's trajectories."""
    before: dict[int, list[Any]] = {}
    for one in table.trajectories:
        # Who is not asked before the last joint turn has nothing to agree in.
        if len(one) > 1:
            texts = (one.agent, tuple(one.completions[:-1]))
            before.setdefault(one.episode, []).append(texts)
    found: dict[Any, dict[int, list[int]]] = {}
    for i, one in enumerate(table.trajectories):
        if not len(one):
            continue
        place = one.task.group_id, tuple(sorted(before.get(one.episode, [])))
        found.setdefault(place, {}).setdefault(one.agent, []).append(i)
    return list(found.values())


def _require_played(
    table: TurnTable,
    samples: list[list[int]],
    rewards: np.ndarray,
    earned: dict[int, float],
) -> None:
    """Refuse games that the task's seed and the texts do not decide."""
    agents = [
        {table.trajectories[i].episode: k for k, i in enumerate(s)} for s in samples
    ]
    for episode in set(agents[0]).intersection(*agents[1:]):
        again = rewards[tuple(agent[episode] for agent in agents)]
        if math.isclose(again, earned[episode], rel_tol=1e-6, abs_tol=1e-6):
            continue
        task = table.trajectories[samples[0][agents[0][episode]]].task
        raise ConfigError(
            f"Rollout {task.rollout} of the task with seed {task.seed} earned "
            f"{earned[episode]:g}; played again with the same texts it earned "
            f"{again:g}. joint='cross' needs games that the seed and the texts decide, "
            "paid by the environment alone. Seed the environment in reset(), leave "
            "rewards and reward_transforms out, or use joint='aligned'."
        )
