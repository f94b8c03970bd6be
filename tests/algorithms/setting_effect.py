"""Pairs of values of a setting, and the place where they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Effect:
    """The effect of a setting.

    Attributes:
        look: Called with the section's settings; what it returns differs.
        values: Two values of the setting; ``DEFAULT`` leaves it out.
        given: Settings of the same section that it needs.
        more: Settings of other sections that it needs.
    """

    look: Callable[..., Any]
    values: tuple[Any, Any]
    given: dict[str, Any] = dataclasses.field(default_factory=dict)
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def seen(self, path: str, value: Any) -> Any:
        """Return the effect of a value."""
        section, _, key = path.partition(".")
        own = dict(self.given) if value is DEFAULT else {**self.given, key: value}
        return self.look(**{section: own}, **self.more)


DEFAULT = object()


def of(look: Callable[..., Any], algo: str, *values: Any, env: Any = None) -> Any:
    """Return an Effect without further settings."""

    def seen(**sections: Any) -> Any:
        return look(algo, env, **sections)

    return Effect(seen, values if len(values) == 2 else (DEFAULT, values[0]))


def needing(effect: Effect, **sections: Any) -> Effect:
    """Return it with further settings; ``own`` is the setting's own section."""
    return dataclasses.replace(effect, given=sections.pop("own", {}), more=sections)
