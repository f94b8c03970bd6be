"""Registry of environments by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rllib_llm.errors import ConfigError
from rllib_llm.registry import Registry

EnvClass = TypeVar("EnvClass", bound=type)


def _load_shipped_envs() -> None:
    from rllib_llm.envs import shipped  # noqa: F401  (its decorators register)


TEXT_ENVS: Registry[type] = Registry("environment", _load_shipped_envs)


def register_text_env(name: str) -> Callable[[EnvClass], EnvClass]:
    """Register an environment class under a versioned name, e.g. ``"maze-v0"``.

    The class is a :class:`TextEnv` or a
    :class:`~rllib_llm.envs.multi_agent_env.MultiAgentTextEnv`. Increment the version
    when prompts or rewards change, so that results stay comparable.

    Raises:
        ConfigError: If the name has no version.
    """
    if "-v" not in name:
        raise ConfigError(
            f"The environment name {name!r} has no version. Use {name + '-v0'!r}."
        )

    def decorate(cls: EnvClass) -> EnvClass:
        TEXT_ENVS.register(name, cls)
        return cls

    return decorate
