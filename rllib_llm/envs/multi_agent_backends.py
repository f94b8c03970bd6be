"""Backends of MultiAgentAdapter, one per kind of multi-agent environment."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseWrapper

from rllib_llm.envs.multi_agent_env import MultiAgentTextEnv
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

_MOST_SILENT_STEPS = 1_000


@dataclasses.dataclass(slots=True)
class Raw:
    """Unchecked, unordered output of an environment."""

    asked: dict[str, Any] = dataclasses.field(default_factory=dict)
    rewards: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    terminated: set[str] = dataclasses.field(default_factory=set)
    truncated: set[str] = dataclasses.field(default_factory=set)
    finals: dict[str, Any] = dataclasses.field(default_factory=dict)
    infos: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    shared_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    alive: set[str] = dataclasses.field(default_factory=set)


class AECBackend:
    """Reads an ``AECEnv`` after each of its steps, and performs the dead steps."""

    def __init__(self, env: AECEnv, names: list[str]):
        self._env, self._names = env, names
        # Not env.unwrapped: inside a conversion wrapper, the game is already ahead.
        inner = env
        while isinstance(inner, BaseWrapper):
            inner = inner.env
        self._text_env = inner if isinstance(inner, MultiAgentTextEnv) else None

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Raw:
        self._env.reset(seed=seed, options=options)
        raw = Raw()
        self._look(raw)
        return self._bury(raw)

    def step(self, actions: dict[str, Any]) -> Raw:
        raw = Raw()
        for agent, text in actions.items():
            if self._env.agent_selection != agent:
                raise EnvContractError(
                    f"{self._env} changed agent_selection between steps: it now "
                    f"expects {self._env.agent_selection!r} to act instead of "
                    f"{agent!r}. Change it in step() or reset() only."
                )
            self._env.step(text)
            self._look(raw)
        return self._bury(raw)

    def _look(self, raw: Raw) -> None:
        env = self._env
        # Text environments also reward agents that have not joined or have ended.
        given = self._text_env.grants if self._text_env else env.rewards.items()
        raw.rewards += given
        raw.infos.update({a: dict(info or {}) for a, info in env.infos.items()})
        for agent in list(env.agents):
            if env.terminations[agent]:
                raw.terminated.add(agent)
            elif env.truncations[agent] and agent not in raw.truncated:
                raw.truncated.add(agent)
                raw.finals[agent] = env.observe(agent)

    def _bury(self, raw: Raw) -> Raw:
        """Step ended agents until a live one must act, or all are gone."""
        env = self._env
        for _ in range(len(self._names) + 1):
            agent = env.agent_selection if env.agents else None
            if agent is None:
                return raw
            if not (env.terminations[agent] or env.truncations[agent]):
                # Agents that have ended stay in env.agents until their dead step.
                ended = {a for a in env.agents if env.terminations[a]}
                ended |= {a for a in env.agents if env.truncations[a]}
                raw.alive = set(env.agents) - ended
                pending = self._text_env.pending if self._text_env else [agent]
                raw.asked = {a: env.observe(a) for a in pending}
                return raw
            # PettingZoo removes an ended agent when it steps with None.
            env.step(None)
            self._look(raw)
        raise EnvContractError(
            f"{env} keeps {env.agent_selection!r} among its agents after step(None). "
            "Call _was_dead_step(action) at the top of step() for ended agents."
        )


class ParallelBackend:
    """Reads a ``ParallelEnv``."""

    def __init__(self, env: ParallelEnv, silence: dict[str, str | None]):
        self._env, self._names, self._silence = env, list(silence), silence

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Raw:
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._read(observations, {}, {}, {}, infos)

    def step(self, actions: dict[str, Any]) -> Raw:
        # A ParallelEnv wants an action of every live agent, also of those that wait.
        silent = {a: self._silence[a] for a in self._names if a in self._env.agents}
        return self._read(*self._env.step({**silent, **actions}))

    def _read(
        self,
        observations: dict[str, Any],
        rewards: dict[str, float],
        terminated: dict[str, bool],
        truncated: dict[str, bool],
        infos: dict[str, dict[str, Any]] | None,
    ) -> Raw:
        return Raw(
            # The dictionaries may also hold shared keys such as "common".
            asked={a: o for a, o in observations.items() if a in self._names},
            rewards=list(rewards.items()),
            terminated={a for a in self._names if terminated.get(a)},
            truncated={a for a in self._names if truncated.get(a)},
            finals=observations,
            infos={a: dict(i or {}) for a, i in (infos or {}).items()},
            alive=set(self._env.agents),
        )


class RLlibBackend:
    """Reads RLlib's ``MultiAgentEnv``, in which agents with an observation act next."""

    def __init__(self, env: MultiAgentEnv, names: list[str]):
        self._env, self._names = env, names
        self._ended: set[str] = set()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Raw:
        self._ended = set()
        observations, infos = self._env.reset(seed=seed, options=options)
        return self._until_asked(self._read(observations, {}, {}, {}, infos))

    def step(self, actions: dict[str, Any]) -> Raw:
        return self._until_asked(self._read(*self._env.step(actions)))

    def _until_asked(self, raw: Raw) -> Raw:
        """Step without actions until an agent must act, as RLlib's own runner does."""
        for _ in range(_MOST_SILENT_STEPS):
            if raw.asked or not raw.alive:
                return raw
            more = self._read(*self._env.step({}))
            # Steps without actors become one: their rewards and ends add up, and the
            # newest observations and infos count.
            more.rewards = raw.rewards + more.rewards
            more.terminated |= raw.terminated
            more.truncated |= raw.truncated
            more.finals = {**raw.finals, **more.finals}
            more.infos = {**raw.infos, **more.infos}
            more.shared_info = {**raw.shared_info, **more.shared_info}
            raw = more
        raise EnvContractError(
            f"{self._env} returned no observation in {_MOST_SILENT_STEPS} steps, and "
            "neither terminateds['__all__'] nor truncateds['__all__']. Return an "
            "observation for an agent that must act, or end the episode."
        )

    def _read(
        self,
        observations: dict[str, Any],
        rewards: dict[str, float],
        terminateds: dict[str, bool],
        truncateds: dict[str, bool],
        infos: dict[str, dict[str, Any]] | None,
    ) -> Raw:
        terminated = {a for a in self._names if terminateds.get(a)}
        # An agent with both flags has terminated: there is no value to bootstrap.
        truncated = {a for a in self._names if truncateds.get(a)} - terminated
        # RLlib's flags name only agents that end now; the others live on, silent or
        # not.
        rest = set(self._names) - self._ended - terminated - truncated
        if terminateds.get("__all__"):
            terminated, rest = terminated | rest, set()
        elif truncateds.get("__all__"):
            truncated, rest = truncated | rest, set()
        for agent in observations:
            if agent in self._ended:
                raise EnvContractError(
                    f"{self._env} returned an observation of {agent!r} after its end. "
                    "End an agent only when it has finished acting."
                )
        self._ended |= terminated | truncated
        common_infos = dict(infos or {})
        return Raw(
            asked={a: o for a, o in observations.items() if a not in self._ended},
            rewards=list(rewards.items()),
            terminated=terminated,
            truncated=truncated,
            finals=dict(observations),
            infos={
                a: dict(i or {}) for a, i in common_infos.items() if a in self._names
            },
            shared_info=dict(common_infos.get("__common__") or {}),
            alive=rest,
        )
