"""Teams with exchanged, silenced or strange members, on the same held-out tasks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.selfplay.matrix import SwapMatrix
from rllib_llm.selfplay.payoffs import GameResult

NO_ONE = "(silent)"


def play_assignment(
    algo: Any,
    assignment: Mapping[str, str],
    num_episodes: int,
    *,
    explore: bool = True,
    silent: str = "pass",
) -> list[Any]:
    """Play held-out tasks with given policies on given seats.

    Args:
        algo: An algorithm that trained a team.
        assignment: Policy of each agent; ``NO_ONE`` puts an agent there that always
            says
            ``silent`` (an ablated agent).
        num_episodes: How many tasks, the same ones every time.
        explore: Sample as in training, or take the most likely tokens.
        silent: What an ablated agent says.

    Returns:
        The episodes.

    Raises:
        ConfigError: If an agent or a policy is unknown.
    """
    agents = _agents(algo.config)
    for agent, policy in assignment.items():
        if agent not in agents:
            raise ConfigError(f"There is no agent {agent!r}; agents are {agents}.")
        if policy not in (*algo.config.module_ids, NO_ONE):
            raise ConfigError(
                f"There is no policy {policy!r}; policies are {algo.config.module_ids}."
            )
    runner = local_runner(algo)
    tasks = algo.config.build_task_source(in_evaluation=True).fixed(num_episodes)
    with runner.assignment(dict(assignment), {NO_ONE: lambda turn: silent}):
        return runner.sample(tasks=tasks, explore=explore)


def swap_matrix(
    algo: Any, num_episodes: int = 64, *, explore: bool = True
) -> SwapMatrix:
    """Play every assignment of the language models to the seats.

    A team whose roles have specialised fails with its policies exchanged. Agents of
    numbers keep their policies.

    Args:
        algo: An algorithm that trained a team with one policy per role.
        num_episodes: Held-out tasks per assignment.
        explore: Sample as in training, or take the most likely tokens.
    """
    agents, speakers = _agents(algo.config), _speakers(algo.config)
    policies = algo.config.llm_module_ids
    usual = _default_assignment(algo.config, agents)
    matrix = SwapMatrix(agents)
    for chosen in itertools.product(policies, repeat=len(speakers)):
        assignment = {**usual, **dict(zip(speakers, chosen, strict=True))}
        players = [assignment[agent] for agent in agents]
        episodes = play_assignment(algo, assignment, num_episodes, explore=explore)
        matrix.record(results_of(episodes, agents, players))
    return matrix


def ablations(
    algo: Any, num_episodes: int = 64, *, explore: bool = True
) -> dict[str, float]:
    """Return the team's success with each agent silenced, and with none (``"none"``).

    Agents of numbers are never silent. Where the environment knows no success, the
    mean return over agents counts.
    """
    agents = _agents(algo.config)
    usual = _default_assignment(algo.config, agents)
    found = {
        "none": _score(play_assignment(algo, usual, num_episodes, explore=explore))
    }
    for agent in _speakers(algo.config):
        assignment = {**usual, agent: NO_ONE}
        episodes = play_assignment(algo, assignment, num_episodes, explore=explore)
        found[agent] = _score(episodes)
    return found


def results_of(
    episodes: Sequence[Any], agents: Sequence[str], players: Sequence[str]
) -> list[GameResult]:
    """Return what each seat earned in each episode."""
    results = []
    for number, episode in enumerate(episodes):
        parts = episode.agent_episodes
        returns = tuple(
            float(parts[a].get_return()) if a in parts else 0.0 for a in agents
        )
        results.append(GameResult(number, tuple(players), returns))
    return results


def _agents(config: Any) -> list[str]:
    env = config.make_text_env()
    agents = agents_of(env)
    env.close()
    if agents is None:
        raise ConfigError(f"{config.env!r} has a single agent: there is no team.")
    return agents


def _speakers(config: Any) -> list[str]:
    """Return the agents that read text."""
    env = config.make_text_env()
    found = [a for a in _agents(config) if env.number_spaces(a) is None]
    env.close()
    return found


def _default_assignment(config: Any, agents: Sequence[str]) -> dict[str, str]:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    episode = MultiAgentEpisode()
    episode_data(episode).task = config.build_task_source().next_groups(1)[0]
    return {agent: config.policy_mapping_fn(agent, episode) for agent in agents}


def _score(episodes: Sequence[Any]) -> float:
    solved = [episode_data(e).success for e in episodes]
    if None not in solved:
        return float(np.mean(solved))
    return float(np.mean([e.get_return() / len(e.agent_episodes) for e in episodes]))
