"""Annotation metadata besides that of ``annotated_types``, and common types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval

Fraction = Annotated[float, Interval(ge=0, le=1)]
NonNegativeFloat = Annotated[float, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveInt = Annotated[int, Ge(1)]


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Choices given by a table of the package.

    Attributes:
        names: The choices.
    """

    names: tuple[Any, ...]

    def __init__(self, names: Iterable[Any]) -> None:
        object.__setattr__(self, "names", tuple(names))


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition that a type cannot express.

    Attributes:
        must_be: Description of the condition, the end of "must be ...".
        holds: Returns True if a value fulfils the condition.
    """

    must_be: str
    holds: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Hint:
    """A remedy for values that break the rule.

    Attributes:
        text: A sentence.
    """

    text: str


@dataclasses.dataclass(frozen=True)
class InfinityAllowed:
    """Marks numbers that may be infinite."""


@dataclasses.dataclass(frozen=True)
class SubclassOf:
    """A base class given by name, so that the declaration does not import it.

    Attributes:
        path: ``"package.module:Name"``.
    """

    path: str

    def base(self) -> type[Any]:
        """Import and return the class."""
        module, _, name = self.path.partition(":")
        return getattr(import_module(module), name)
