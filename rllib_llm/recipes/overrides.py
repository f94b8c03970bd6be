"""Dotted overrides of a recipe, e.g. ``training.lr=2e-5``."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from rllib_llm import yaml_io
from rllib_llm.errors import ConfigError
from rllib_llm.schema import show


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``data`` with every ``path.to.key=value`` set.

    Paths are split at dots only, so ``stop.env_runners/episode_return_mean=0.9`` sets
    the bound of a nested metric. Values are YAML.

    Raises:
        ConfigError: An override has no ``=``, or a prefix of its path is not a mapping.
    """
    data = copy.deepcopy(data)
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(
                f"The override {show(override)} must have the form section.key=value, "
                "e.g. training.lr=2e-5."
            )
        _set(data, keys, yaml_io.parse(text, f"The value of {path[:100]}"), override)
    return data


def _set(data: dict[str, Any], keys: list[str], value: object, override: str) -> None:
    node = data
    for depth, key in enumerate(keys[:-1], start=1):
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
        if not isinstance(node, dict):
            raise ConfigError(
                f"The override {show(override)} sets a key of "
                f"{'.'.join(keys[:depth])}={show(node)}, which is not a mapping. "
                "Set that value as a whole."
            )
    node[keys[-1]] = value
