"""A simultaneous text game as a PettingZoo ``ParallelEnv``."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
from pettingzoo import ParallelEnv

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.errors import EnvContractError


class ParallelView(ParallelEnv):
    """A simultaneous :class:`MultiAgentTextEnv` as a ``ParallelEnv``.

    While others repeat an invalid action, an agent observes an empty text (a numeric
    agent its last observation), and its action is ignored.

    Raises:
        EnvContractError: If agents do not act simultaneously.
    """

    def __init__(self, env: MultiAgentTextEnv):
        if not env.simultaneous:
            raise EnvContractError(
                f"{type(env).__name__} has no parallel view, because its agents act in "
                "turns. Set simultaneous = True if all agents act at once."
            )
        self._env = env
        self.metadata, self.render_mode = env.metadata, env.render_mode
        self.possible_agents = list(env.possible_agents)
        self.agents: list[str] = []

    @property
    def unwrapped(self) -> MultiAgentTextEnv:
        """The game itself."""
        return self._env

    def observation_space(self, agent: str) -> gym.Space:
        """Return the space of any text under the key ``"text"``."""
        return self._env.observation_space(agent)

    def action_space(self, agent: str) -> gym.Space:
        """Return the space of any text."""
        return self._env.action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; return observations and infos."""
        self._env.reset(seed=seed, options=options)
        self.agents = list(self._env.agents)
        return self._observations(), copy.deepcopy(self._env.infos)

    def step(self, actions: dict[str, str]) -> tuple[dict[str, Any], ...]:
        """Play a round; return observations, rewards, both kinds of ends, and infos."""
        env = self._env
        # A copy: step() removes agents from it.
        for agent in list(env.pending):
            env.step(actions[agent])
        rewards = dict(env.rewards)
        # PettingZoo's dictionary lacks agents that have left or not yet joined.
        for agent, reward in env.grants:
            if agent not in env.rewards:
                rewards[agent] = rewards.get(agent, 0.0) + reward
        ends = dict(env.terminations), dict(env.truncations)
        # Before the dead steps, which clear rewards and remove agents.
        result = (self._observations(), rewards, *ends, copy.deepcopy(env.infos))
        while env.agents and env.agent_selection not in env.live_agents:
            env.step(None)
        self.agents = list(env.agents)
        return result

    def _observations(self) -> dict[str, Any]:
        env = self._env
        waiting = set(env.live_agents) - set(env.pending)
        return {
            agent: {"text": ""}
            if agent in waiting and agent not in env._number_agents
            else env.observe(agent)
            for agent in env.agents
        }
