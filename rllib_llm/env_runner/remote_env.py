"""Environments in actors of Ray, each with a runtime environment of its own."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError, RuntimeEnvSetupError

from rllib_llm.envs.child_process import EnvProcessError
from rllib_llm.envs.multi_agent_adapter import MultiAgentStep
from rllib_llm.envs.remote_host import MISSING, VALUE, EnvHost, is_generator
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import (
    CallTimeoutError,
    ConfigError,
    MissingExtraError,
    did_you_mean,
)
from rllib_llm.remote_calls import TimeLimit, result_of

_OPTIONS = ("env", "env_config", "runtime_env", "num_cpus", "timeout_s")
_TIMEOUT_S = 600.0
_NO_ATTRIBUTE = "the environment has no attribute"


def make_remote(config: Mapping[str, Any]) -> RemoteEnv | RemoteMultiAgentEnv:
    """Return an environment in an actor.

    Args:
        config: ``env`` and ``env_config`` of the environment; ``runtime_env``, as
            Ray's ``ray.init(runtime_env=...)`` takes it; ``num_cpus`` of the actor, by
            default 0; ``timeout_s``, the longest time in seconds for one call, the
            first of which includes the installation of ``runtime_env``, by default 600.

    Raises:
        ConfigError: If an option is unknown, or the runtime environment is not one of
            Ray's or cannot be set up.
    """
    actor = EnvActor(dict(config))
    agents = actor.call("agents")
    return RemoteEnv(actor) if agents is None else RemoteMultiAgentEnv(actor, agents)


class EnvActor:
    """Handle of an actor with an :class:`EnvHost`, which starts at the first call.

    Args:
        config: Options of :func:`make_remote`.

    Raises:
        ConfigError: If one is unknown or invalid.
    """

    def __init__(self, config: dict[str, Any]):
        unknown = config.keys() - set(_OPTIONS)
        if unknown or "env" not in config:
            hint = did_you_mean(min(unknown), _OPTIONS) if unknown else ""
            raise ConfigError(
                f"env_config={config!r} of a remote environment must have env, and may "
                f"have env_config, runtime_env, num_cpus and timeout_s. {hint}"
            )
        self._limit = TimeLimit(_seconds(config), "env_config.timeout_s")
        self._spec = config["env"]
        self._name = f"The actor of the environment {self._spec!r}"
        self._env_config = dict(config.get("env_config") or {})
        self._options = {
            "num_cpus": config.get("num_cpus", 0),
            "runtime_env": _runtime_env(config.get("runtime_env") or {}),
            "max_restarts": 0,
        }
        self._key = (str(self._spec), json.dumps(config, sort_keys=True, default=str))
        self._handle: Any = None

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the host.

        Raises:
            ConfigError: If the runtime environment cannot be set up.
            EnvProcessError: If the actor died, or did not answer within ``timeout_s``;
                it is ended then.
            Exception: Any that the environment raises.
        """
        if self._handle is None:
            self._handle = _IDLE.take(self._key) or self._start()
        try:
            reference = getattr(self._handle, method).remote(*args)
            return result_of(reference, f"{self._name} in {method}()", self._limit)
        except CallTimeoutError as error:
            self.kill()
            raise EnvProcessError(f"{error} The actor was ended.") from error
        except RuntimeEnvSetupError as error:
            self._handle = None
            raise ConfigError(
                f"runtime_env={self._options['runtime_env']!r} of the environment "
                f"{self._spec!r} cannot be set up: {error}. Correct it."
            ) from error
        except RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, Exception):
                raise
            cause.add_note(f"In the environment's actor:\n{error}")
            raise cause from None
        except RayActorError as error:
            self._handle = None
            raise EnvProcessError(
                f"{self._name} died in {method}(): {error}"
            ) from error

    def run(self, path: str, *args: Any, **keywords: Any) -> Any:
        """Call a method of the environment."""
        value, states = self.call("run", path, args, keywords)
        # The environment drew from copies of these.
        given = [a for a in args if is_generator(a)]
        for generator, state in zip(given, states, strict=True):
            generator.bit_generator.state = state
        return value

    def attribute(self, path: str) -> Any:
        """Return an attribute of the environment, or a function for a method.

        Raises:
            AttributeError: If there is none.
        """
        kind, value = self.call("look", path)
        if kind == MISSING:
            raise AttributeError(f"{_NO_ATTRIBUTE} {path!r}")
        if kind == VALUE:
            return value
        return lambda *args, **keywords: self.run(path, *args, **keywords)

    def close(self) -> None:
        """Close the environment and keep the actor for the next equal one."""
        handle, self._handle = self._handle, None
        if handle is not None and ray.is_initialized():
            handle.close.remote()
            _IDLE.give(self._key, handle)

    def kill(self) -> None:
        """End the actor, e.g. because the environment hangs."""
        handle, self._handle = self._handle, None
        if handle is not None and ray.is_initialized():
            ray.kill(handle)

    def _start(self) -> Any:
        wants_pip = self._options["runtime_env"].get("pip")
        if wants_pip and importlib.util.find_spec("virtualenv") is None:
            raise MissingExtraError.for_extra("virtualenv", "runtime-env")
        try:
            actor = ray.remote(EnvHost).options(**self._options)
        except ValueError as error:  # e.g. a local folder in py_modules
            raise _invalid(self._options["runtime_env"], error) from error
        return actor.remote(self._spec, self._env_config)


class _IdleActors:
    """One idle actor per environment: drivers build and close many environments."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[Any, Any] = {}

    def take(self, key: Any) -> Any:
        """Return an idle actor, None without one."""
        with self._lock:
            return self._handles.pop((_session(), key), None)

    def give(self, key: Any, handle: Any) -> None:
        """Keep an actor, or end it if there is one already."""
        with self._lock:
            kept = self._handles.setdefault((_session(), key), handle)
        if kept is not handle:
            ray.kill(handle)


_IDLE = _IdleActors()


class RemoteEnv(gym.Env):
    """A single-agent environment in an actor.

    Attributes that this class lacks are those of the innermost environment.
    """

    def __init__(self, actor: EnvActor):
        self._actor = actor
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        return self._actor.run("reset", seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one turn."""
        return self._actor.run("step", action)

    def close(self) -> None:
        """Close the environment."""
        self._actor.close()

    def kill(self) -> None:
        """End the actor, e.g. because the environment hangs."""
        self._actor.kill()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # before __init__, and in copies
            raise AttributeError(name)
        return self._actor.attribute(f"unwrapped.{name}")


class RemoteMultiAgentEnv:
    """A multi-agent environment in an actor, with MultiAgentAdapter's interface.

    Args:
        actor: The actor.
        agents: The agents' names.
    """

    def __init__(self, actor: EnvActor, agents: list[str]):
        self._actor = actor
        self.possible_agents = agents
        self._number_spaces: dict[str, Any] = {}

    @property
    def unwrapped(self) -> Any:
        """Innermost environment, with scripted policies."""
        return _Inner(self._actor.attribute)

    @property
    def max_turns(self) -> int | None:
        """Turn limit; None without one."""
        return getattr(self.unwrapped, "max_turns", None)

    def number_spaces(self, agent: str) -> tuple[gym.Space, gym.Space] | None:
        """Return observation and action space of a numeric agent; None for text."""
        if agent not in self._number_spaces:  # asked in every step
            spaces = self._actor.run("number_spaces", agent)
            self._number_spaces[agent] = spaces
        return self._number_spaces[agent]

    def random_numbers(self, agent: str, rng: np.random.Generator) -> Any:
        """Return a random action of a numeric agent."""
        return self._actor.run("random_numbers", agent, rng)

    def system_prompt_for(self, agent: str) -> str | None:
        """Return an agent's system prompt; None without one."""
        return self._actor.run("system_prompt_for", agent)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> MultiAgentStep:
        """Start an episode."""
        return self._actor.run("reset", seed=seed, options=options)

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        """Play one step of the agents that act."""
        return self._actor.run("step", dict(actions))

    def close(self) -> None:
        """Close the environment."""
        self._actor.close()

    def kill(self) -> None:
        """End the actor, e.g. because the environment hangs."""
        self._actor.kill()


class _Inner:
    """The innermost environment of an actor."""

    def __init__(self, attribute: Callable[[str], Any]):
        self._attribute = attribute

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._attribute(f"unwrapped.{name}")


def _seconds(config: Mapping[str, Any]) -> float:
    seconds = config.get("timeout_s", _TIMEOUT_S)
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not seconds > 0:
        raise ConfigError(
            f"timeout_s={seconds!r} of a remote environment must be a number of "
            "seconds above 0."
        )
    return float(seconds)


def _session() -> str:
    return str(ray.get_runtime_context().get_job_id())


def _runtime_env(given: Any) -> Any:
    """Return a RuntimeEnv, which checks its fields."""
    from ray.runtime_env import RuntimeEnv

    try:
        return RuntimeEnv(**given)
    except (TypeError, ValueError) as error:
        raise _invalid(given, error) from error


def _invalid(given: Any, error: Exception) -> ConfigError:
    return ConfigError(
        f"runtime_env={given!r} is not one of Ray's for actors: {error}. See Ray's "
        "page on runtime environments for its fields."
    )
