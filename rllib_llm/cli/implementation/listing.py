"""``rllib-llm list``: names that recipes can use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.recipes.names import shipped_recipes
from rllib_llm.yaml_io import read


def show(kind: str | None) -> None:
    """Print the names of one kind, or of all kinds.

    Raises:
        ConfigError: The kind is unknown.
    """
    if kind is not None and kind not in _KINDS:
        raise ConfigError(f"Unknown kind {kind!r}. {did_you_mean(kind, _KINDS)}")
    for name in [kind] if kind else _KINDS:
        rows = list(_KINDS[name]())
        typer.echo(f"{name}:")
        width = max((len(first) for first, _ in rows), default=0)
        for first, second in rows:
            typer.echo(f"  {first:<{width}}  {second}")


def _algorithms() -> Iterator[tuple[str, str]]:
    from rllib_llm.algorithms.registry import ALGORITHMS

    for name in ALGORITHMS:
        entry = ALGORITHMS.get(name)
        yield name, f"{entry.summary} ({entry.paper})"


def _envs() -> Iterator[tuple[str, str]]:
    from rllib_llm.envs.registry import TEXT_ENVS

    for name in TEXT_ENVS:
        doc = inspect.getdoc(TEXT_ENVS.get(name)) or ""
        yield name, doc.partition("\n")[0]


def _examples() -> Iterator[tuple[str, str]]:
    for name, path in shipped_recipes().items():
        yield name, _describe(path)


def _components() -> Iterator[tuple[str, str]]:
    from rllib_llm.components.doc_tables import all_components, settings_of

    for component in all_components():
        about = f"{component.summary} ({component.paper})"
        yield (
            f"{component.kind} {component.name}",
            f"[{settings_of(component)}] {about}",
        )


def _describe(path: Path) -> str:
    recipe = read(path)
    return " ".join(str(recipe.get("description", "")).split())


_KINDS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "algorithms": _algorithms,
    "envs": _envs,
    "examples": _examples,
    "components": _components,
}
