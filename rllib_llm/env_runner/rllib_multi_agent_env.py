"""MultiAgentAdapter as RLlib's MultiAgentEnv, for RLlib's stock env runners."""

from __future__ import annotations

from typing import Any

from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.utils.annotations import override

from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
from rllib_llm.envs.spaces import UnicodeText


class RLlibMultiAgentAdapter(MultiAgentEnv):
    """Reports steps in the form that RLlib's ``MultiAgentEpisode`` records correctly.

    - An observation means that the agent must act; only agents that must act get one.
    - A reward counts only if it completes a turn. Rewards of an agent are held until
      its next observation after an action, or until the end of the episode.
    - All ends are reported when the last agent has ended. RLlib would drop rewards of
      an agent that ended earlier, and it would end the whole episode if all agents that
      have appeared so far have ended, although others are still to come.
    - ``truncateds`` then has only ``__all__``: if every agent has its own flag, RLlib
      marks the episode as terminated, and no agent bootstraps. In an episode where
      some agents terminate and others are truncated, the former carry both flags.

    RLlib's episode cannot hold rewards of an agent that never acted; they are in
    ``infos["__common__"]["unassigned_rewards"]`` of the last step.

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
        self._clear()

    @override(MultiAgentEnv)
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        self._clear()
        step = self.env.reset(seed=seed, options=options)
        self._record(step)
        self.agents = list(step.observations)
        return step.observations, self._infos_of(step.observations)

    @override(MultiAgentEnv)
    def step(self, action_dict: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step the environment; the class docstring says what is reported when."""
        step = self.env.step(action_dict)
        self._has_acted |= set(action_dict)
        self._record(step)
        observations = dict(step.observations)
        terminateds, truncateds = {"__all__": False}, {"__all__": False}
        if step.is_over:
            observations = {
                a: text for a, text in self._final.items() if a in self._has_acted
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
        active = {*self.agents, *step.observations} - self._final.keys()
        self.agents = [a for a in self.possible_agents if a in active]
        return observations, rewards, terminateds, truncateds, infos

    @override(MultiAgentEnv)
    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _clear(self) -> None:
        self._has_acted: set[str] = set()
        self._terminated: set[str] = set()
        self._held: dict[str, float] = {}  # rewards of turns that are not complete yet
        self._final: dict[str, Any] = {}  # final observations of agents that ended
        self._numbers: dict[str, Any] = {}  # last observations of numeric agents
        self._infos: dict[str, dict[str, Any]] = {}  # the newest by agent

    def _record(self, step: MultiAgentStep) -> None:
        for agent, reward in step.rewards:
            self._held[agent] = self._held.get(agent, 0.0) + reward
        observed = step.observations
        self._numbers |= {
            a: o for a, o in observed.items() if self.env.number_spaces(a)
        }
        for agent in (*step.terminated, *step.truncated):
            # RLlib needs a final observation inside the space: an empty text, or the
            # last array once more.
            default = self._numbers.get(agent, "")
            self._final[agent] = step.final_observations.get(agent, default)
        self._terminated |= set(step.terminated)
        self._infos |= {a: info for a, info in step.infos.items() if info}

    def _infos_of(self, agents: dict[str, str]) -> dict[str, Any]:
        return {a: self._infos.get(a, {}) for a in agents}


def to_rllib_env(env: MultiAgentAdapter) -> MultiAgentEnv:
    """Return ``env`` as a ``MultiAgentEnv`` that RLlib's stock runners can sample."""
    return RLlibMultiAgentAdapter(env)
