"""Tasks inside of other environments."""

from __future__ import annotations

from typing import TypeVar

from rllib_llm.envs.registry import TEXT_ENVS
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError

Task = TypeVar("Task", bound=TextEnv)


def task_class(
    name: str, kind: type[Task], problem: str, refused: tuple[type, ...] = ()
) -> type[Task]:
    """Return the class of a registered environment that another one contains.

    Args:
        name: Its registered name.
        kind: Class that it must derive from.
        problem: Problem of other classes, and the remedy; the message begins with
            ``task=...``.
        refused: Classes that it must not derive from.

    Raises:
        ConfigError: If the environment is of another kind, or not registered.
    """
    cls = TEXT_ENVS.get(name)
    if not issubclass(cls, kind) or issubclass(cls, refused):
        raise ConfigError(f"task={name!r} {problem}")
    return cls
