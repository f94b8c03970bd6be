"""The field ``env`` of a recipe: one environment or a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_llm.envs.mixture_members import ENVIRONMENTS, MIXTURE, read_members
from rllib_llm.errors import ConfigError
from rllib_llm.recipes import search_spaces
from rllib_llm.schema import show


def is_mixture(env: object) -> bool:
    """Return whether the field is a mixture, which is checked here.

    Raises:
        ConfigError: If it is a mapping, but not a valid mixture.
    """
    if not isinstance(env, Mapping):
        return False
    if set(env) != {MIXTURE}:
        raise ConfigError(
            f"env: {show(env)} must be one name, or a mixture, e.g. env: {{mixture: "
            "[{env: guess_number-v0, weight: 2}, {env: frozen_lake-v0}]}."
        )
    # Values of search spaces are checked with the config, one by one.
    read_members({ENVIRONMENTS: search_spaces.first_of(env[MIXTURE])})
    return True


def environment_of(recipe: Mapping[str, Any]) -> tuple[str, Any]:
    """Return a recipe's environment and options, as ``.environment()`` takes them.

    Raises:
        ConfigError: If options stand beside a mixture.
    """
    env, env_config = recipe["env"], recipe.get("env_config", {})
    if not isinstance(env, Mapping):
        return env, env_config
    if env_config:
        raise ConfigError(
            f"env_config={show(env_config)} would have no effect beside a mixture. "
            "Give each environment its own: {env: NAME, env_config: {...}}."
        )
    return MIXTURE, {ENVIRONMENTS: env[MIXTURE]}
