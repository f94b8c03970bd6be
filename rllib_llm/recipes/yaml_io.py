"""YAML as recipes need it: numbers with exponents, no duplicate keys, plain dumps."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from rllib_llm.errors import ConfigError


class _RecipeLoader(yaml.SafeLoader):
    """SafeLoader that reads ``5e-5`` as YAML 1.2 does, and refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"The key {key!r} stands twice (line {line}).")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# PyYAML follows YAML 1.1, in which a float needs a dot: 5e-5 would be a string.
_RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.[0-9]*)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse(text: str, where: str) -> Any:
    """Return what ``text`` says.

    Args:
        text: YAML.
        where: Named in error messages, e.g. a file.

    Raises:
        ConfigError: If it is not YAML, or a key stands twice in one mapping.
    """
    try:
        return yaml.load(text, _RecipeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not valid YAML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error} Keep one of them.") from error


def read(path: Path) -> Any:
    """Return what the file ``path`` says."""
    return parse(path.read_text(encoding="utf-8"), str(path))


def dump(data: Any) -> str:
    """Return ``data`` as YAML, keys in their order."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=88)
