"""The part of a remote environment that runs in its actor; imports no Ray or torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllib_llm.envs.make import make_playable

MISSING, METHOD, VALUE = "missing", "method", "value"


class EnvHost:
    """Plays one environment at a time in the process of an actor."""

    def __init__(self, spec: Any, env_config: dict[str, Any]):
        self._spec, self._env_config = spec, env_config
        self._env: Any = None

    def agents(self) -> list[str] | None:
        """Return the agents' names; None with one agent."""
        return getattr(self._built(), "possible_agents", None)

    def look(self, path: str) -> tuple[str, Any]:
        """Return the kind of an attribute, and its value if it is not a method."""
        value: Any = self._built()
        for name in path.split("."):
            if not hasattr(value, name):
                return MISSING, None
            value = getattr(value, name)
        return (METHOD, None) if callable(value) else (VALUE, value)

    def run(self, path: str, args: Any, keywords: Any) -> tuple[Any, list[Any]]:
        """Call a method; return its value and the states of generators it was given."""
        method: Any = self._built()
        for name in path.split("."):
            method = getattr(method, name)
        value = method(*args, **keywords)
        return value, [a.bit_generator.state for a in args if is_generator(a)]

    def close(self) -> None:
        """Close the environment; the next call builds another one."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _built(self) -> Any:
        if self._env is None:
            self._env = make_playable(self._spec, self._env_config)
        return self._env


def is_generator(value: object) -> bool:
    """Return whether ``value`` is a generator of NumPy."""
    return isinstance(value, np.random.Generator)
