"""Reading and writing of YAML: exponents as numbers, no duplicate keys, size limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer

from rllib_llm.errors import ConfigError, summarize
from rllib_llm.schema import show

if TYPE_CHECKING:
    from typing import IO

# Recipes have a few thousand characters. The limits keep other files from exhausting
# time or memory, here and in later code that traverses the values.
MAX_CHARACTERS = 200_000
MAX_DEPTH = 40
MAX_NODES = 20_000
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _RecipeLoader(yaml.SafeLoader):
    """SafeLoader that reads ``5e-5`` and dates as in YAML 1.2, with size limits.

    Duplicate keys, recursive aliases, and tags without a counterpart in JSON are
    refused; merge keys (``<<: *base``) work.
    """

    def __init__(self, stream: str | IO[str]) -> None:
        super().__init__(stream)
        self._depth = 0
        self._open: set[str] = set()
        self._sizes: dict[int, int] = {}  # nodes of each subtree, aliases expanded

    def compose_node(self, parent: yaml.Node | None, index: int) -> Any:
        """Compose a node and count the nodes of its subtree."""
        event = self.peek_event()
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._open:
            raise ConfigError(
                f"The alias *{event.anchor} (line {line}) contains itself. Write its "
                "value out."
            )
        if self._depth >= MAX_DEPTH:
            raise ConfigError(
                f"Line {line} is nested deeper than {MAX_DEPTH} levels. Flatten it."
            )
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            anchor = None
        self._depth += 1
        if anchor is not None:
            self._open.add(anchor)
        node = Composer.compose_node(self, parent, index)
        self._depth -= 1
        if anchor is not None:
            self._open.discard(anchor)
        self._count(node, line)
        return node

    def _count(self, node: yaml.Node | None, line: int) -> None:
        below = []
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        total = 1 + sum(self._sizes[id(part)] for part in below)
        self._sizes[id(node)] = total
        if total > MAX_NODES:
            raise ConfigError(
                f"Line {line} holds more than {MAX_NODES} values, with aliases "
                "expanded. Move data into a file that the environment reads."
            )

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> Any:
        """Compose a mapping and check that its keys are unique scalars."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(
                    f"A key in line {line} is a collection; keys must be names. Quote "
                    "it, or use a name."
                )
            if (key.tag, key.value) in seen:
                raise ConfigError(
                    f"The key {show(key.value, 60)} occurs twice (line {line}). Keep "
                    "one of them."
                )
            seen.add((key.tag, key.value))
        return node


# PyYAML follows YAML 1.1, in which a float needs a dot: 5e-5 would be a string.
_RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+|[0-9]*\.[0-9]+|[0-9]+\.[0-9]*)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)
# YAML 1.2 has no dates: texts that look like one stay texts.
_RecipeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in _RecipeLoader.yaml_implicit_resolvers.items()
}
for _tag in ("timestamp", "binary", "set", "omap", "pairs"):
    _RecipeLoader.add_constructor(
        f"tag:yaml.org,2002:{_tag}",
        # PyYAML's stubs want the class that is extended.
        yaml.SafeLoader.construct_undefined,  # type: ignore[type-var]
    )


def parse(text: str, where: str) -> Any:
    """Return the value of a YAML text.

    Args:
        text: YAML.
        where: Origin of the text for error messages, e.g. a file.

    Raises:
        ConfigError: If it is not YAML, a key occurs twice in a mapping, or it exceeds
            the limits of this module.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(
            f"{where} has {len(text)} characters; a recipe has at most "
            f"{MAX_CHARACTERS}. Move data into a file that the environment reads."
        )
    try:
        return yaml.load(text, _RecipeLoader)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except Exception as error:  # PyYAML's constructors raise any type on wrong tags
        what = " ".join(str(error).split()) if isinstance(error, yaml.YAMLError) else ""
        raise ConfigError(
            f"{where} is not valid YAML: {what[:500] or summarize(error)}. Quote texts "
            "with special characters."
        ) from error


def read(path: Path) -> Any:
    """Return the value of a YAML file.

    Raises:
        ConfigError: If it cannot be read or is not UTF-8, or as in :func:`parse`.
    """
    try:
        if path.stat().st_size > 4 * MAX_CHARACTERS:
            raise ConfigError(
                f"{path} has {path.stat().st_size} bytes; a recipe has at most "
                f"{MAX_CHARACTERS} characters. Check the path."
            )
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}. Check path and permissions."
        ) from error
    return parse(text, str(path))


def dump(data: object) -> str:
    """Return ``data`` as YAML, keys in their order."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=88)
