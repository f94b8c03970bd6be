"""Named pieces of methods: found by name, checked, and called.

A piece is a small function (or a class with ``__call__``, where it must remember
something) whose keyword-only parameters are its settings. In YAML it is its name, or a
mapping of ``name`` and settings; a piece of your own is ``"package.module:function"``,
or the function itself in Python. Nothing is registered for that.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.imports import import_object
from rllib_llm.registry import Registry
from rllib_llm.schema import hints_of, is_number, require, show

# What calls a piece of each kind, and where it is built in.
_HOMES = {
    "advantage_estimator": "rllib_llm.advantages.estimators",
    "advantage_transform": "rllib_llm.advantages.estimators.transforms",
    "reward": "rllib_llm.rewards",
    "reward_transform": "rllib_llm.rewards.transforms",
    "filter": "rllib_llm.filters",
    "curriculum": "rllib_llm.curricula",
    "policy_loss": "rllib_llm.losses.policy_losses",
    "loss_term": "rllib_llm.losses.loss_terms",
    "token_advantage_transform": "rllib_llm.losses.token_advantage_transforms",
}
KINDS = tuple(_HOMES)
# Kinds whose pieces are never summed.
_UNWEIGHTED = (
    "advantage_transform",
    "reward_transform",
    "filter",
    "curriculum",
    "policy_loss",
    "token_advantage_transform",
)

EFFECTS = ("drop", "mask")

Spec = str | Mapping[str, Any] | Callable[..., Any]
"""How a piece is named in a configuration."""

Specs = Spec | Sequence[Spec]
"""Several pieces; a single one may stand without its list."""


@dataclasses.dataclass(frozen=True)
class Component:
    """One entry of the literature.

    Attributes:
        kind: What it can be used as; one of ``KINDS``.
        name: How it is called in YAML.
        make: The function, or the class whose instances are called.
        paper: Where the formula stands.
        effect: What a filter does to trajectories that it does not keep, unless the
            configuration says otherwise: "drop", or "mask" (they still count in the
            statistics of their group); "turns": it returns what it keeps per turn, and
            the others are masked.
    """

    kind: str
    name: str
    make: Callable[..., Any]
    paper: str = ""
    effect: str = "drop"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Its settings: the keyword-only parameters."""
        found = inspect.signature(self.make).parameters.values()
        return {p.name: p for p in found if p.kind is p.KEYWORD_ONLY}

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]


@dataclasses.dataclass
class BoundComponent:
    """A piece with its settings, ready to be called.

    Attributes:
        piece: What was chosen.
        settings: Given for its keyword-only parameters.
        weight: Of what it returns, where pieces of its kind are summed; a number, or
            pairs ``[[iteration, value], ...]`` between which it changes linearly.
        effect: Of a filter; see :class:`Component`.
        call: The piece with its settings bound.
    """

    component: Component
    settings: dict[str, Any]
    weight: Any = 1.0
    effect: str = "drop"
    call: Callable[..., Any] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Bind the settings; a class becomes an instance with a memory of its own."""
        if inspect.isclass(self.component.make):
            self.call = self.component.make(**self.settings)
        else:
            self.call = functools.partial(self.component.make, **self.settings)

    def weight_at(self, iteration: int) -> float:
        """Return the weight in a training iteration."""
        if isinstance(self.weight, int | float):
            return float(self.weight)
        at, values = zip(*self.weight, strict=True)
        return float(np.interp(iteration, at, values))

    def get_state(self) -> Any:
        """Return what the piece remembers, None if nothing."""
        return self.call.get_state() if hasattr(self.call, "get_state") else None

    def set_state(self, state: Any) -> None:
        """Bring back what :meth:`get_state` returned."""
        if state is not None:
            self.call.set_state(state)


def _loader(kind: str) -> Callable[[], None]:
    return lambda: (import_module(_HOMES[kind]), None)[1]


COMPONENTS: dict[str, Registry[Component]] = {
    kind: Registry(kind.replace("_", " "), load=_loader(kind)) for kind in KINDS
}


def component(
    kind: str, name: str, *, paper: str = "", effect: str = "drop"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function or class as a piece (decorator).

    Example:
        >>> @component("advantage_estimator", "first-turn", paper="none: an example")
        ... def first_turn(table, *, bonus: float = 1.0):
        ...     "All credit to the first turn."
        ...     return np.where(table.turn == 0, bonus * table.returns[table.owner], 0)
    """

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        COMPONENTS[kind].register(name, Component(kind, name, make, paper, effect))
        return make

    return decorate


def bind(kind: str, spec: Spec) -> BoundComponent:
    """Return the piece that a configuration names, with its settings.

    Args:
        kind: One of ``KINDS``.
        spec: Its name, a mapping with ``name`` and settings, or a function.

    Raises:
        ConfigError: If there is no such piece, or a setting is unknown or missing.
    """
    settings = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    if "name" not in settings:
        raise ConfigError(
            f"A piece of kind {kind} is given as {show(spec)}, without a name. "
            f"Known: {', '.join(COMPONENTS[kind].names())}."
        )
    found = _find(kind, settings.pop("name"))
    general = _general_settings(found, settings)
    for key in settings:
        if key not in found.parameters:
            raise ConfigError(
                f"{kind} {found.name!r} has no setting {key!r}. "
                f"{did_you_mean(key, [*found.parameters, *general])}"
            )
        _check_setting(found, key, settings[key])
    for key, parameter in found.parameters.items():
        if parameter.default is parameter.empty and key not in settings:
            raise ConfigError(
                f"{kind} {found.name!r} needs {key!r}, e.g. "
                f"{{name: {found.name}, {key}: ...}}."
            )
    try:
        return BoundComponent(found, settings, **general)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind} {found.name!r}: {error}") from error


def _check_setting(found: Component, key: str, value: Any) -> None:
    """Hold a setting against its annotation, if the piece has one."""
    default = found.parameters[key].default
    kind = hints_of(found.make).get(key, Any)
    if value is not default:
        require(f"{found.kind} {found.name}.{key}", value, kind)


def _general_settings(found: Component, settings: dict[str, Any]) -> dict[str, Any]:
    """Take out what pieces of a kind have in common, unless it is their own."""
    general: dict[str, Any] = {}
    if found.kind == "filter" and found.effect in EFFECTS:
        general["effect"] = effect = settings.pop("effect", found.effect)
        if effect not in EFFECTS:
            raise ConfigError(
                f"filter {found.name!r}: effect={effect!r}. "
                f"{did_you_mean(str(effect), EFFECTS)}"
            )
    if found.kind not in _UNWEIGHTED and "weight" not in found.parameters:
        general["weight"] = weight = settings.pop("weight", 1.0)
        if not is_number(weight) and not _is_schedule(found.kind, weight):
            also = " or pairs [[iteration, value], ...]" * _may_change(found.kind)
            raise ConfigError(
                f"{found.kind} {found.name!r}: weight={show(weight)} must be a "
                f"number{also}."
            )
    return general


def _may_change(kind: str) -> bool:
    return kind in ("reward", "loss_term")


def _is_schedule(kind: str, weight: Any) -> bool:
    if not _may_change(kind) or not isinstance(weight, list | tuple) or not weight:
        return False
    pairs = all(isinstance(p, list | tuple) and len(p) == 2 for p in weight)
    if not pairs or not all(is_number(x) for p in weight for x in p):
        return False
    at = [p[0] for p in weight]
    return at == sorted(set(at))


def bind_all(kind: str, specs: Specs | None) -> list[BoundComponent]:
    """Return the pieces of a list; a single one may stand without its list."""
    if specs is None:
        return []
    if isinstance(specs, str | Mapping) or callable(specs):
        specs = [specs]
    return [bind(kind, spec) for spec in specs]


def _find(kind: str, name: Any) -> Component:
    if callable(name):
        return Component(kind, getattr(name, "__name__", repr(name)), name)
    if not isinstance(name, str):
        raise ConfigError(f"A piece of kind {kind} is named {name!r}; use its name.")
    if ":" not in name:
        return COMPONENTS[kind].get(name)
    return Component(kind, name, import_object(name, kind))
