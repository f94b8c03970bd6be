"""A MultiAgentAdapter as RLlib's MultiAgentEnv, for the stock env runners."""

from __future__ import annotations

from typing import Any

from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.utils.annotations import override

from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
from rllib_llm.envs.spaces import UnicodeText


class RLlibMultiAgentAdapter(MultiAgentEnv):
    """Say things in the way that RLlib's ``MultiAgentEpisode`` records correctly.

    - An observation means that the agent must act; only those that must get one.
    - A reward counts only where it completes a turn. Rewards of an agent wait for its
      next observation after an action, or for the end of the episode.
    - All ends are told when nobody is left. Told earlier, RLlib would drop rewards that
      an agent earns after it left, and end the whole episode if all agents that have
      appeared so far have ended, though others are still to come.
    - ``truncateds`` then has only ``__all__``: where every agent is flagged by itself,
      RLlib calls the episode terminated, and nobody bootstraps. In an episode where
      some terminate and others are truncated, the former carry both flags.

    What an agent that never acted was given has no place in RLlib's episode; it stands
    in ``infos["__common__"]["unassigned_rewards"]`` of the last step.

    Args:
        env: The environment.
    """

    def __init__(self, env: MultiAgentAdapter):
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self.agents: list[str] = []
        text = UnicodeText(), UnicodeText()
        spaces = {a: env.number_spaces(a) or text for a in self.possible_agents}
        self.observation_spaces = {a: each[0] for a, each in spaces.items()}
        self.action_spaces = {a: each[1] for a, each in spaces.items()}
        super().__init__()
        self._forget()

    @override(MultiAgentEnv)
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        self._forget()
        step = self.env.reset(seed=seed, options=options)
        self._note(step)
        self.agents = list(step.observations)
        return step.observations, self._infos_of(step.observations)

    @override(MultiAgentEnv)
    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Play a round; see the class for what is told when."""
        step = self.env.step(action_dict)
        self._has_acted |= set(action_dict)
        self._note(step)
        observations = dict(step.observations)
        terminateds, truncateds = {"__all__": False}, {"__all__": False}
        if step.is_over:
            observations = {
                a: text for a, text in self._last_texts.items() if a in self._has_acted
            }
            terminateds = dict.fromkeys(self._terminated & self._has_acted, True)
            truncateds["__all__"] = bool(observations.keys() - self._terminated)
            terminateds["__all__"] = not truncateds["__all__"]
        rewards = {
            a: self._held.pop(a, 0.0) for a in observations if a in self._has_acted
        }
        infos = self._infos_of(observations)
        if step.is_over and self._held:
            infos["__common__"] = {"unassigned_rewards": dict(self._held)}
        known = {*self.agents, *step.observations} - self._last_texts.keys()
        self.agents = [a for a in self.possible_agents if a in known]
        return observations, rewards, terminateds, truncateds, infos

    @override(MultiAgentEnv)
    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _forget(self) -> None:
        self._has_acted: set[str] = set()
        self._terminated: set[str] = set()
        self._held: dict[str, float] = {}  # rewards that wait for a turn to complete
        self._last_texts: dict[str, Any] = {}  # of agents that have ended
        self._numbers: dict[str, Any] = {}  # what agents of numbers observed last
        self._infos: dict[str, dict[str, Any]] = {}  # the newest by agent

    def _note(self, step: MultiAgentStep) -> None:
        for agent, reward in step.rewards:
            self._held[agent] = self._held.get(agent, 0.0) + reward
        read = step.observations
        self._numbers |= {a: o for a, o in read.items() if self.env.number_spaces(a)}
        for agent in (*step.terminated, *step.truncated):
            nothing_new = self._numbers.get(agent, "")
            self._last_texts[agent] = step.final_observations.get(agent, nothing_new)
        self._terminated |= set(step.terminated)
        self._infos |= {a: info for a, info in step.infos.items() if info}

    def _infos_of(self, agents: dict[str, str]) -> dict[str, Any]:
        return {a: self._infos.get(a, {}) for a in agents}


def to_rllib_env(env: MultiAgentAdapter) -> MultiAgentEnv:
    """Return ``env`` as a ``MultiAgentEnv`` that RLlib's stock runners can sample."""
    return RLlibMultiAgentAdapter(env)
