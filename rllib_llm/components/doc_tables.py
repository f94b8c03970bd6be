"""Tables of all components for the docs: names, settings, papers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from rllib_llm.components.registry import COMPONENTS, KINDS, Component


def all_components() -> Iterator[Component]:
    """Yield the registered components, kind by kind, by name."""
    for kind in KINDS:
        for name in COMPONENTS[kind]:
            yield COMPONENTS[kind].get(name)


def settings_of(component: Component) -> str:
    """Return the settings with their defaults, e.g. ``"low=-5.0, high=5.0"``."""
    return ", ".join(_setting(p) for p in component.parameters.values())


def markdown_row(component: Component) -> str:
    """Return the row of docs/components.md for a component."""
    settings = ", ".join(f"`{_setting(p)}`" for p in component.parameters.values())
    summary = component.summary.replace("``", "`")
    return f"| `{component.name}` | {settings} | {summary} | {component.paper} |"


def markdown_tables() -> str:
    """Return the tables of docs/components.md, one per kind."""
    return "\n\n".join(markdown_table(kind) for kind in KINDS) + "\n"


def markdown_table(kind: str) -> str:
    """Return the table of all components of a kind."""
    head = f"| {kind} | settings | what it does | source |\n|---|---|---|---|"
    rows = (markdown_row(COMPONENTS[kind].get(name)) for name in COMPONENTS[kind])
    return "\n".join([head, *rows])


def _setting(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return f"{parameter.name} (needed)"
    return f"{parameter.name}={parameter.default!r}"
