"""Evaluation of teams with exchanged or ablated policies on held-out tasks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.errors import ConfigError
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.selfplay.matrix import SwapMatrix
from rllib_llm.selfplay.payoffs import GameResult

if TYPE_CHECKING:
    from rllib_llm.types import LLMAlgorithm, LLMConfig

NO_ONE = "(silent)"


def play_assignment(
    algo: LLMAlgorithm,
    assignment: Mapping[str, str],
    num_episodes: int,
    *,
    explore: bool = True,
    silent: str = "pass",
) -> list[Any]:
    """Play held-out tasks with a given policy for each agent.

    Args:
        algo: An algorithm that trained a team.
        assignment: Policy of each agent; ``NO_ONE`` ablates an agent, which then always
            replies ``silent``.
        num_episodes: Number of tasks, the same tasks every time.
        explore: Sample as in training, or decode greedily.
        silent: Reply of an ablated agent.

    Returns:
        The episodes.

    Raises:
        ConfigError: If an agent or a policy does not exist.
    """
    agents = _agents(algo.config)
    for agent, policy in assignment.items():
        if agent not in agents:
            raise ConfigError(
                f"The environment has no agent {agent!r}. Choose among {agents}."
            )
        if policy not in (*algo.config.module_ids, NO_ONE):
            raise ConfigError(
                f"The run has no policy {policy!r}. Choose among "
                f"{algo.config.module_ids}."
            )
    runner = local_runner(algo)
    tasks = algo.config.build_task_source(in_evaluation=True).fixed(num_episodes)
    with runner.assignment(dict(assignment), {NO_ONE: lambda turn: silent}):
        return runner.sample(tasks=tasks, explore=explore)


def swap_matrix(
    algo: LLMAlgorithm, num_episodes: int = 64, *, explore: bool = True
) -> SwapMatrix:
    """Play every assignment of the language models to the agents.

    A team whose roles have specialised fails with exchanged policies. Agents with
    numeric spaces keep their policies.

    Args:
        algo: An algorithm that trained a team with one policy per role.
        num_episodes: Number of held-out tasks per assignment.
        explore: Sample as in training, or decode greedily.
    """
    agents, text_agents = _agents(algo.config), _text_agents(algo.config)
    policies = algo.config.llm_module_ids
    default = _default_assignment(algo.config, agents)
    matrix = SwapMatrix(agents)
    for chosen in itertools.product(policies, repeat=len(text_agents)):
        assignment = {**default, **dict(zip(text_agents, chosen, strict=True))}
        players = [assignment[agent] for agent in agents]
        episodes = play_assignment(algo, assignment, num_episodes, explore=explore)
        matrix.record(results_of(episodes, agents, players))
    return matrix


def ablations(
    algo: LLMAlgorithm, num_episodes: int = 64, *, explore: bool = True
) -> dict[str, float]:
    """Return the team's success with each agent ablated, and with none (``"none"``).

    Agents with numeric spaces are not ablated. If the environment does not report
    success, the score is the mean return over agents.
    """
    agents = _agents(algo.config)
    default = _default_assignment(algo.config, agents)
    scores = {
        "none": _score(play_assignment(algo, default, num_episodes, explore=explore))
    }
    for agent in _text_agents(algo.config):
        assignment = {**default, agent: NO_ONE}
        episodes = play_assignment(algo, assignment, num_episodes, explore=explore)
        scores[agent] = _score(episodes)
    return scores


def results_of(
    episodes: Sequence[Any], agents: Sequence[str], players: Sequence[str]
) -> list[GameResult]:
    """Return each episode as a GameResult with the return of every agent."""
    results = []
    for number, episode in enumerate(episodes):
        parts = episode.agent_episodes
        returns = tuple(
            # An agent without a turn in the episode has no SingleAgentEpisode.
            float(parts[a].get_return()) if a in parts else 0.0
            for a in agents
        )
        results.append(GameResult(number, tuple(players), returns))
    return results


def _agents(config: LLMConfig) -> list[str]:
    env = config.make_text_env()
    agents = agents_of(env)
    env.close()
    if agents is None:
        raise ConfigError(
            f"{config.env!r} has a single agent; team evaluation needs several. Use "
            "`rllib-llm evaluate`."
        )
    return agents


def _text_agents(config: LLMConfig) -> list[str]:
    """Return the agents that observe text."""
    env = config.make_text_env()
    text_agents = [a for a in _agents(config) if env.number_spaces(a) is None]
    env.close()
    return text_agents


def _default_assignment(config: LLMConfig, agents: Sequence[str]) -> dict[str, str]:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    # A mapping may depend on the episode's task, so it gets one of training.
    episode = MultiAgentEpisode()
    episode_data(episode).task = config.build_task_source().next_groups(1)[0]
    return {agent: config.policy_mapping_fn(agent, episode) for agent in agents}


def _score(episodes: Sequence[Any]) -> float:
    outcomes = [episode_data(e).success for e in episodes]
    solved = [success for success in outcomes if success is not None]
    if len(solved) == len(episodes):
        return float(np.mean(solved))
    return float(np.mean([e.get_return() / len(e.agent_episodes) for e in episodes]))
