"""MultiAgentAdapter: one interface to every kind of multi-agent text environment."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

from rllib_llm.data.types import StopReason
from rllib_llm.envs.env_kinds import is_multi_agent, is_rllib_env, rllib_spaces
from rllib_llm.envs.env_options import is_finite
from rllib_llm.envs.multi_agent_backends import (
    AECBackend,
    ParallelBackend,
    Raw,
    RLlibBackend,
)
from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.envs.spaces import is_of_numbers
from rllib_llm.errors import EnvContractError, did_you_mean

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

    from rllib_llm.envs.make import AnyEnv


@dataclasses.dataclass(slots=True)
class MultiAgentStep:
    """The result of one call of :class:`MultiAgentAdapter`.

    Attributes:
        observations: Observation of each agent that must act next, in order; several
            if they act simultaneously. Text, or the unchanged observation of a numeric
            agent.
        rewards: All non-zero ``(agent, reward)`` since the last call, of any declared
            agent: acting, waiting, not yet joined, or ended.
        terminated: Agents that terminated in this call.
        truncated: Agents that were truncated in this call.
        final_observations: Next observations of truncated agents, from which the
            critic bootstraps; agents without a new observation are missing.
        infos: Info dictionaries by agent.
        is_over: Whether all agents have ended.
        success: Whether the task was solved, once an info contains it.
        metrics: Values to average over episodes, merged from the infos.
        stop_reason: Reason for the end of the episode, from the infos; by default
            ``"max_turns"`` if the last call truncated an agent, else ``"terminated"``.
            None during the episode.
        error: Description of the failure that ended the episode, from the infos.
    """

    observations: dict[str, Any] = dataclasses.field(default_factory=dict)
    rewards: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    terminated: tuple[str, ...] = ()
    truncated: tuple[str, ...] = ()
    final_observations: dict[str, Any] = dataclasses.field(default_factory=dict)
    infos: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    is_over: bool = False
    success: bool | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    stop_reason: str | None = None
    error: str | None = None


class MultiAgentAdapter:
    """Steps an environment of PettingZoo, or RLlib's MultiAgentEnv, round by round.

    Every call returns exactly the agents that must act next. It also keeps what other
    wrappers lose: infos of ``reset``, rewards before an agent's first or after its last
    action, a stable order of agents declared as a set, agents that join late or leave
    early, and episodes in which some agents terminate and others are truncated.

    Args:
        env: An ``AECEnv`` or ``ParallelEnv`` whose observations are strings or
            dictionaries with a string under ``"text"``, and whose actions are text. In
            a ``ParallelEnv`` an agent with an empty observation does not act; its
            action is then ``""``. An agent with a numeric observation space (a Box,
            Discrete, ...) observes and acts in numbers; without an observation, or with
            None, it does not act, and its action is None. In a ``MultiAgentEnv``
            exactly the agents with an observation act next; the episode ends with
            ``terminateds["__all__"]`` or ``truncateds["__all__"]``, and
            ``infos["__common__"]`` may hold ``success`` and ``metrics``.

    Raises:
        EnvContractError: If ``env`` is of another kind, or breaks its library's
            contract in an episode.
    """

    def __init__(self, env: AnyEnv | MultiAgentEnv):
        if not is_multi_agent(env):
            raise EnvContractError(
                f"MultiAgentAdapter got {type(env).__name__}; it requires a "
                "pettingzoo AECEnv or ParallelEnv, or a MultiAgentEnv of RLlib."
            )
        names = getattr(env, "possible_agents", None)
        if not names:
            raise EnvContractError(
                f"{env} has no possible_agents. List every agent that may ever take "
                "part, because policies are assigned before an episode starts."
            )
        if not all(isinstance(name, str) for name in names):
            raise EnvContractError(
                f"{env} has the possible_agents {list(names)}. Use strings as names, "
                "e.g. 'player_0', because policies are mapped by name."
            )
        # The order of a set differs between Python processes.
        is_set = isinstance(names, (set, frozenset))
        self.possible_agents: list[str] = sorted(names) if is_set else list(names)
        self.env = env
        # Read once: PettingZoo requires that spaces do not change.
        declared = {agent: _spaces_of(env, agent) for agent in self.possible_agents}
        self._numbers = {
            agent: spaces
            for agent, spaces in declared.items()
            if spaces is not None and is_of_numbers(spaces[0])
        }
        self._play: AECBackend | ParallelBackend | RLlibBackend
        if isinstance(env, AECEnv):
            self._play = AECBackend(env, self.possible_agents)
        elif is_rllib_env(env):
            self._play = RLlibBackend(env, self.possible_agents)
        else:
            silence = {a: None if a in self._numbers else "" for a in declared}
            self._play = ParallelBackend(env, silence)
        self._asked: tuple[str, ...] = ()
        self._ended: set[str] = set()
        self._live: set[str] = set()

    @property
    def unwrapped(self) -> Any:
        """The innermost environment, which has the scripted policies."""
        return self.env.unwrapped

    @property
    def live_agents(self) -> list[str]:
        """Agents that have not ended, in the order of ``possible_agents``."""
        return list(self._ordered(self._live))

    def system_prompt_for(self, agent: str) -> str | None:
        """Return the agent's system prompt, if the environment has one."""
        if hasattr(self.unwrapped, "system_prompt_for"):
            return self.unwrapped.system_prompt_for(agent)
        return getattr(self.unwrapped, "system_prompt", None)

    def number_spaces(self, agent: str) -> tuple[gym.Space, gym.Space] | None:
        """Return observation and action space of a numeric agent; None for text."""
        return self._numbers.get(agent)

    def random_numbers(self, agent: str, rng: np.random.Generator) -> Any:
        """Return a random action of a numeric agent."""
        space = self._numbers[agent][1]
        # Gymnasium's spaces sample from a generator of their own.
        space.seed(int(rng.integers(2**31)))
        return space.sample()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> MultiAgentStep:
        """Start an episode."""
        self._ended, self._live = set(), set()
        return self._collect(self._play.reset(seed, options))

    def step(self, actions: dict[str, Any]) -> MultiAgentStep:
        """Apply the actions of exactly the agents that had to act.

        Args:
            actions: Texts or numbers by agent.
        """
        if set(actions) != set(self._asked):
            raise EnvContractError(
                f"step() got actions of {sorted(actions)}; the agents to act are "
                f"{list(self._asked)}."
                + ("" if self._asked else " The episode has ended: call reset().")
            )
        return self._collect(self._play.step({a: actions[a] for a in self._asked}))

    def snapshot(self) -> bytes:
        """Return a copy of the episode's state, random generator included.

        Raises:
            EnvContractError: If the environment is no MultiAgentTextEnv, or its state
                cannot be copied.
        """
        if not isinstance(self.env, MultiAgentTextEnv):
            raise EnvContractError(
                f"{self.env} is no MultiAgentTextEnv, and its state cannot be copied."
            )
        state = (self.env.snapshot(), self._asked, self._ended, self._live)
        try:
            return pickle.dumps(state)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise EnvContractError(
                f"The state of {self.env} cannot be copied: {error}. Keep the state in "
                "attributes that can be pickled."
            ) from error

    def restore(self, state: bytes) -> None:
        """Return to a :meth:`snapshot` of an environment with the same options."""
        inner, self._asked, self._ended, self._live = pickle.loads(state)
        self.env.restore(inner)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _collect(self, raw: Raw) -> MultiAgentStep:
        for agent, reward in raw.rewards:
            self._require_declared(agent, f"the reward {reward!r}")
            if not is_finite(reward):
                raise EnvContractError(
                    f"{self.env} rewarded {agent!r} with {reward!r}; rewards must be "
                    "finite numbers."
                )
        # AEC environments repeat the flags of ended agents; report each end once.
        raw.terminated -= self._ended
        # Terminated wins: a terminal state has no value to bootstrap from.
        raw.truncated -= self._ended | raw.terminated
        self._account_for_agents(raw)
        step = MultiAgentStep(
            # float(): numpy scalars of other dtypes would travel into logs and JSON.
            rewards=[(a, float(r)) for a, r in raw.rewards if r],
            terminated=self._ordered(raw.terminated),
            truncated=self._ordered(raw.truncated),
            infos={a: dict(raw.infos[a]) for a in self._ordered(raw.infos)},
            is_over=not self._live,
        )
        for agent in step.truncated:
            last = self._read(raw.finals.get(agent, self._nothing(agent)), agent)
            if not _is_nothing(last):
                step.final_observations[agent] = last
        if self._live:
            step.observations = self._questions(raw)
        self._asked = tuple(step.observations)
        _read_results(step, raw.shared_info)
        return step

    def _account_for_agents(self, raw: Raw) -> None:
        """Update the live agents; an agent must not vanish, return or be undeclared."""
        ended_now = raw.terminated | raw.truncated
        for agent in sorted(raw.alive | ended_now):
            self._require_declared(agent, "a turn")
        # PettingZoo's AEC games list ended agents until they have made a dead step.
        alive = raw.alive - ended_now
        for agent in sorted(self._live - alive - ended_now):
            raise EnvContractError(
                f"{self.env} dropped {agent!r} from its agents without terminating or "
                "truncating it. Set one of the two flags when an agent leaves."
            )
        for agent in sorted(alive & self._ended):
            raise EnvContractError(
                f"{self.env} returned {agent!r} after its end. Use a new name."
            )
        self._ended |= ended_now
        self._live = alive

    def _nothing(self, agent: str) -> str | None:
        return None if agent in self._numbers else ""

    def _read(self, observation: object, agent: str) -> Any:
        """Return the observation's text; for a numeric agent the observation itself."""
        if agent not in self._numbers:
            return _text_of(observation, agent)
        space = self._numbers[agent][0]
        if observation is not None and not space.contains(observation):
            raise EnvContractError(
                f"The observation {observation!r} of {agent!r} is not in its "
                f"observation space {space}. Return a member of the right shape and "
                "dtype, or declare a matching space."
            )
        return observation

    def _questions(self, raw: Raw) -> dict[str, Any]:
        # Ended agents may still have an observation: it is their last one, no question.
        texts = {a: self._read(raw.asked[a], a) for a in raw.asked if a in self._live}
        if isinstance(self._play, ParallelBackend):
            # The API has no turn order, so an empty text means that an agent waits.
            asked = {a for a, text in texts.items() if not _is_nothing(text)}
            texts = {a: texts[a] for a in self._ordered(asked)}
        for agent, text in texts.items():
            if _is_nothing(text):
                raise EnvContractError(
                    f"{self.env} expects {agent!r} to act on an empty text. Return a "
                    "non-empty observation for it."
                )
        if not texts:
            raise EnvContractError(
                f"{self.env} returned no observation, but {sorted(self._live)} have "
                "not ended. End them, or return an observation for one of them."
            )
        return texts

    def _require_declared(self, agent: str, what: str) -> None:
        if agent not in self.possible_agents:
            raise EnvContractError(
                f"{self.env} gave {what} to {agent!r}, which is not one of its "
                f"possible_agents {self.possible_agents}. "
                f"{did_you_mean(str(agent), self.possible_agents)} Declare every agent."
            )

    def _ordered(self, agents: Iterable[str]) -> tuple[str, ...]:
        chosen = set(agents)
        return tuple(a for a in self.possible_agents if a in chosen)


def _spaces_of(
    env: AnyEnv | MultiAgentEnv, agent: str
) -> tuple[gym.Space, gym.Space] | None:
    """Return the declared spaces; None if undeclared, as for text agents."""
    if is_rllib_env(env):
        return rllib_spaces(env, agent)
    defaults = (AECEnv.observation_space, ParallelEnv.observation_space)
    if type(env).observation_space in defaults:  # the default method would warn
        reads = getattr(env, "observation_spaces", {}).get(agent)
        acts = getattr(env, "action_spaces", {}).get(agent)
        return None if reads is None or acts is None else (reads, acts)
    try:
        return env.observation_space(agent), env.action_space(agent)
    except (AttributeError, KeyError, NotImplementedError):
        return None


def _is_nothing(observation: object) -> bool:
    return observation is None or (isinstance(observation, str) and not observation)


def _text_of(observation: object, agent: str) -> str:
    text = observation
    if isinstance(observation, Mapping) and "text" in observation:
        text = observation["text"]
    if not isinstance(text, str):
        raise EnvContractError(
            f"The observation of {agent!r} is {type(observation).__name__}; it must be "
            "a str, or a dictionary with a str under 'text'. Wrap the environment in "
            "one that renders its observations, or declare a numeric observation space "
            "for an RLModule."
        )
    return str(text)


def _read_results(step: MultiAgentStep, shared: dict[str, Any]) -> None:
    """Set the results of the whole episode from the infos."""
    reason = None
    # The common info last, so that it overrides the agents'.
    for info in (*step.infos.values(), shared):
        step.metrics.update(info.get("metrics") or {})
        if info.get("success") is not None:
            step.success = bool(info["success"])
        reason = info.get("stop_reason") or reason
        step.error = info.get("error") or step.error
    if step.is_over:
        guess = StopReason.MAX_TURNS if step.truncated else StopReason.TERMINATED
        step.stop_reason = StopReason(reason or guess).value
