"""Mixture of environments, of which each episode is played in one."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_llm.data.types import MIXTURE_ENVIRONMENT
from rllib_llm.envs.env_kinds import is_multi_agent
from rllib_llm.envs.make import make_playable
from rllib_llm.envs.mixture_members import MixtureMember, read_members
from rllib_llm.envs.multi_agent_adapter import MultiAgentAdapter, MultiAgentStep
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.seeding import stable_seed

SYSTEM_PROMPT = "system_prompt"


class _Members:
    """Environments of a mixture, each built at its first episode."""

    def __init__(self, members: Sequence[MixtureMember]):
        self.by_name = {member.name: member for member in members}
        self.built: dict[str, Any] = {}
        weights = np.array([member.weight for member in members])
        self._shares = weights / weights.sum()
        self.active = members[0].name

    def get(self, name: str) -> Any:
        """Return an environment, built at the first call."""
        if name not in self.built:
            self.built[name] = build_member(self.by_name[name])
        return self.built[name]

    @property
    def active_env(self) -> Any:
        """Environment of the current episode; the first one before any episode."""
        return self.get(self.active)

    def select(self, seed: int | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Select the environment of an episode; return the options for its reset."""
        rest = dict(options)
        name = rest.pop(MIXTURE_ENVIRONMENT, None)
        if name is None:
            # Without a task of the mixture, e.g. for demonstrations: by the weights.
            part = None if seed is None else stable_seed(seed, MIXTURE_ENVIRONMENT)
            draw = np.random.default_rng(part).random()
            index = int(np.searchsorted(np.cumsum(self._shares), draw, side="right"))
            name = list(self.by_name)[min(index, len(self.by_name) - 1)]
        if name not in self.by_name:
            raise ConfigError(
                f"The mixture has no environment {name!r}. "
                f"{did_you_mean(str(name), list(self.by_name))}"
            )
        self.active = name
        return rest

    def close(self) -> None:
        """Close the environments that were built."""
        for env in self.built.values():
            env.close()
        self.built.clear()

    @property
    def max_turns(self) -> int | None:
        """Largest turn limit; None if an environment has none."""
        limits: list[Any] = [
            getattr(self.get(name).unwrapped, "max_turns", None) for name in self.names
        ]
        return None if None in limits else max(limits)

    @property
    def names(self) -> list[str]:
        """Names of the environments in their order."""
        return list(self.by_name)


class Mixture(gym.Env):
    """Single-agent environments, of which each episode is played in one.

    ``reset(options={"mixture_environment": NAME})`` names it; without that option the
    seed draws it by the weights. Attributes that this class lacks are those of the
    current episode's environment.

    Args:
        members: The environments.
    """

    system_prompt = None  # infos of reset() hold that of the episode's environment

    def __init__(self, members: Sequence[MixtureMember]):
        self._members = _Members(members)
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()

    @property
    def environment_names(self) -> list[str]:
        """Names of the environments."""
        return self._members.names

    @property
    def max_turns(self) -> int | None:
        """Largest turn limit of an environment; None if one has none."""
        return self._members.max_turns

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode in the environment of the options, or of the seed."""
        rest = self._members.select(seed, options or {})
        env = self._members.active_env
        observation, info = env.reset(seed=seed, options=rest)
        prompt = getattr(env.unwrapped, SYSTEM_PROMPT, None)
        return observation, {SYSTEM_PROMPT: prompt, **info} if prompt else info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn."""
        return self._members.active_env.step(action)

    def snapshot(self) -> bytes:
        """Return a copy of the episode's state; see ``TextEnv.snapshot``."""
        state = self._members.active_env.unwrapped.snapshot()
        return pickle.dumps((self._members.active, state))

    def restore(self, state: bytes) -> None:
        """Return to a :meth:`snapshot`."""
        self._members.active, inner = pickle.loads(state)
        self._members.active_env.unwrapped.restore(inner)

    def close(self) -> None:
        """Close all environments."""
        self._members.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before __init__, and in copies
            raise AttributeError(name)
        return getattr(self._members.active_env.unwrapped, name)


class MultiAgentMixture:
    """Multi-agent environments, of which each episode is played in one.

    It has the interface of :class:`MultiAgentAdapter`. Its agents are those of all
    environments; an agent of the same name in two environments is one agent.

    Args:
        members: The environments.
    """

    def __init__(self, members: Sequence[MixtureMember]):
        self._members = _Members(members)
        self.possible_agents: list[str] = list(
            dict.fromkeys(a for each in self.environments for a in each.possible_agents)
        )
        self._observed: set[str] = set()

    @property
    def environment_names(self) -> list[str]:
        """Names of the environments."""
        return self._members.names

    @property
    def max_turns(self) -> int | None:
        """Largest turn limit of an environment; None if one has none."""
        return self._members.max_turns

    @property
    def environments(self) -> list[MultiAgentAdapter]:
        """All environments."""
        return [self._members.get(name) for name in self._members.names]

    @property
    def unwrapped(self) -> Any:
        """Innermost environment of the current episode, with scripted policies."""
        return self._members.active_env.unwrapped

    def system_prompt_for(self, agent: str) -> str | None:
        """Return None: the infos hold the system prompts of an episode's agents."""
        return None

    def number_spaces(self, agent: str) -> tuple[gym.Space, gym.Space] | None:
        """Return observation and action space of a numeric agent; None for text."""
        return self._member_of(agent).number_spaces(agent)

    def random_numbers(self, agent: str, rng: np.random.Generator) -> Any:
        """Return a random action of a numeric agent."""
        return self._member_of(agent).random_numbers(agent, rng)

    def _member_of(self, agent: str) -> MultiAgentAdapter:
        return next(e for e in self.environments if agent in e.possible_agents)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> MultiAgentStep:
        """Start an episode in the environment of the options, or of the seed."""
        rest = self._members.select(seed, options or {})
        self._observed = set()
        step = self._members.active_env.reset(seed=seed, options=rest)
        return self._with_prompts(step)

    def step(self, actions: dict[str, Any]) -> MultiAgentStep:
        """Apply the actions of exactly the agents that had to act."""
        return self._with_prompts(self._members.active_env.step(actions))

    def _with_prompts(self, step: MultiAgentStep) -> MultiAgentStep:
        """Add system prompts to the infos of agents that observe for the first time."""
        for agent in step.observations:
            if agent in self._observed:
                continue
            self._observed.add(agent)
            prompt = self._members.active_env.system_prompt_for(agent)
            if prompt:
                info = step.infos.get(agent, {})
                step.infos[agent] = {SYSTEM_PROMPT: prompt, **info}
        return step

    def close(self) -> None:
        """Close all environments."""
        self._members.close()


def build_member(member: MixtureMember) -> Any:
    """Return a new environment of a mixture, ready to run.

    Raises:
        ConfigError: If it does not exist or rejects its options; with its name.
    """
    try:
        return make_playable(member.env, member.env_config)
    except ConfigError as error:
        raise ConfigError(f"mixture, {member.name}: {error}") from error


def make_mixture(env_config: Mapping[str, Any]) -> Mixture | MultiAgentMixture:
    """Return the mixture that ``env_config`` describes.

    Raises:
        ConfigError: If an entry is invalid, or the first environment.
    """
    members = read_members(env_config)
    first = build_member(members[0])
    kind: Any = MultiAgentMixture if _is_several(first) else Mixture
    first.close()
    return kind(members)


def check_mixture(env_config: Mapping[str, Any]) -> None:
    """Build every environment of a mixture and check that they fit together.

    Raises:
        ConfigError: If one does not exist, or if agents do not fit together.
    """
    built = {member.name: build_member(member) for member in read_members(env_config)}
    try:
        _check_kinds(built)
        _check_spaces(built)
    finally:
        for env in built.values():
            env.close()


def _is_several(env: Any) -> bool:
    return is_multi_agent(env) or getattr(env, "possible_agents", None) is not None


def _check_kinds(built: Mapping[str, Any]) -> None:
    several = [name for name, env in built.items() if _is_several(env)]
    single = [name for name in built if name not in several]
    if several and single:
        raise ConfigError(
            f"The mixture has environments with one agent ({', '.join(single)}) and "
            f"with several ({', '.join(several)}), which need different policies and "
            "episodes. Use solo-v0 to play a multi-agent game with one agent, or "
            "team-v0 to give a task to a team."
        )


def _check_spaces(built: Mapping[str, Any]) -> None:
    """Check that agents of the same name act in the same way."""
    firsts: dict[str, tuple[str, Any]] = {}
    for name, env in built.items():
        for agent in getattr(env, "possible_agents", None) or ():
            spaces = env.number_spaces(agent)
            first, expected = firsts.setdefault(agent, (name, spaces))
            if spaces != expected:
                raise ConfigError(
                    f"The agent {agent!r} acts in {_show(expected)} in {first}, but in "
                    f"{_show(spaces)} in {name}; one policy cannot do both. Rename the "
                    "agent in one environment, or leave that environment out of the "
                    "mixture."
                )


def _show(spaces: tuple[gym.Space, gym.Space] | None) -> str:
    return "text" if spaces is None else f"{spaces[1]} (observing {spaces[0]})"
