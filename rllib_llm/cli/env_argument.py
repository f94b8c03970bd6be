"""Parser of environments on the command line, ``NAME[:key=value,...]``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rllib_llm.envs.mixture_members import MIXTURE, read_members
from rllib_llm.errors import ConfigError
from rllib_llm.recipes.overrides import apply_overrides

# A comma that begins another option; values in YAML may contain commas too.
_NEXT_OPTION = re.compile(r",(?=[A-Za-z_]\w*=)")


_RECIPE = (".yaml", ".yml")


def parse_envs(texts: Iterable[str]) -> list[tuple[Any, dict[str, Any]]]:
    """Parse environments; each environment of a mixture is an item of its own."""
    parsed: list[tuple[Any, dict[str, Any]]] = []
    for text in texts:
        env, options = parse_env(text)
        if env == MIXTURE:
            parsed += [(m.env, m.env_config) for m in read_members(options)]
        else:
            parsed.append((env, options))
    return parsed


def parse_env(text: str) -> tuple[str, dict[str, Any]]:
    """Parse ``NAME[:key=value,...]``, where NAME may be ``package.module:Name``.

    The path of a recipe (``.yaml``) stands for its environment, or its mixture.

    Raises:
        ConfigError: The name is missing.
    """
    if is_recipe(text):
        return _of_recipe(text)
    name, colon, options = text.rpartition(":")
    if not colon or "=" not in options:
        name, options = text, ""
    if not name or "=" in name:
        raise ConfigError(
            f"{text!r} does not name an environment. Give NAME or NAME:key=value,..., "
            "e.g. frozen_lake-v0:size=4."
        )
    return name, apply_overrides({}, _NEXT_OPTION.split(options) if options else [])


def is_recipe(text: str) -> bool:
    """Return whether an environment on the command line is the path of a recipe."""
    return text.endswith(_RECIPE)


def _of_recipe(path: str) -> tuple[str, dict[str, Any]]:
    """Return environment and options of a recipe, of its first stage if it has any."""
    from rllib_llm.recipes import load_recipe, search_spaces

    config = load_recipe(path).stages[0].build_config(search_spaces.first_of)
    return config.env, dict(config.env_config)
