"""Registry of named components: looked up, checked and bound to their settings.

A component is a function (or a class with ``__call__``, if it keeps state) whose
keyword-only parameters are its settings. YAML gives its name, or a mapping of ``name``
and settings. Name a component of your own as ``"package.module:function"``, or pass the
function itself in Python; neither needs registration.
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

# Module that registers the built-in components of each kind, imported on first use.
_MODULES = {
    "advantage_estimator": "rllib_llm.advantages.estimators",
    "advantage_transform": "rllib_llm.advantages.estimators.transforms",
    "reward": "rllib_llm.rewards",
    "reward_transform": "rllib_llm.rewards.transforms",
    "filter": "rllib_llm.filters",
    "curriculum": "rllib_llm.curricula",
    "prompt_text": "rllib_llm.prompt_texts",
    "fork": "rllib_llm.forks",
    "answer": "rllib_llm.assistants.scripted",
    "policy_loss": "rllib_llm.losses.policy_losses",
    "loss_term": "rllib_llm.losses.loss_terms",
    "token_advantage_transform": "rllib_llm.losses.token_advantage_transforms",
    "preference_loss": "rllib_llm.losses.preference_losses",
}
KINDS = tuple(_MODULES)
# Kinds of which only one applies, or which run in sequence: a weight would be ignored.
_UNWEIGHTED = (
    "advantage_transform",
    "reward_transform",
    "filter",
    "curriculum",
    "prompt_text",
    "fork",
    "answer",
    "policy_loss",
    "token_advantage_transform",
    "preference_loss",
)

EFFECTS = ("drop", "mask")

Spec = str | Mapping[str, Any] | Callable[..., Any]
"""A component as given in a configuration."""

Specs = Spec | Sequence[Spec]
"""Several components; a single one needs no list."""


@dataclasses.dataclass(frozen=True)
class ComponentSpecs:
    """Components of an environment that process whole groups on the driver.

    Attributes:
        rewards: Components of kind ``reward``.
        reward_transforms: Components of kind ``reward_transform``.
        filters: Components of kind ``filter``.
        curriculum: Component of kind ``curriculum``; None without one.
        prompt_text: Component of kind ``prompt_text``; None without one.
    """

    rewards: Specs = ()
    reward_transforms: Specs = ()
    filters: Specs = ()
    curriculum: Spec | None = None
    prompt_text: Spec | None = None


@dataclasses.dataclass(frozen=True)
class Component:
    """An entry of the registry.

    Attributes:
        kind: One of ``KINDS``.
        name: Name in YAML.
        make: The function, or the class whose instances are called.
        paper: Source of the formula.
        effect: Default treatment of trajectories that a filter does not keep: "drop",
            or "mask" (they still count in the statistics of their group), which the
            configuration can change; "turns": the filter returns a mask per turn, and
            the other turns are masked.
    """

    kind: str
    name: str
    make: Callable[..., Any]
    paper: str = ""
    effect: str = "drop"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The settings: the keyword-only parameters."""
        parameters = inspect.signature(self.make).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def summary(self) -> str:
        """The first line of the component's docstring."""
        return (inspect.getdoc(self.make) or "").partition("\n")[0]


@dataclasses.dataclass
class BoundComponent:
    """A component bound to its settings.

    Attributes:
        component: The registered component.
        settings: Values of its keyword-only parameters.
        weight: Factor of its result, where components of its kind are summed; a number,
            or pairs ``[[iteration, value], ...]``, interpolated linearly.
        effect: A filter's treatment of what it does not keep; see :class:`Component`.
        call: The component as a callable without open settings.
    """

    component: Component
    settings: dict[str, Any]
    weight: Any = 1.0
    effect: str = "drop"
    call: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Bind the settings; a class becomes an instance with state of its own."""
        make = self.component.make
        is_class = inspect.isclass(make)
        self.call = (
            make(**self.settings)
            if is_class
            else functools.partial(make, **self.settings)
        )

    def weight_at(self, iteration: int) -> float:
        """Return the weight in a training iteration."""
        if isinstance(self.weight, int | float):
            return float(self.weight)
        at, values = zip(*self.weight, strict=True)
        return float(np.interp(iteration, at, values))

    def get_state(self) -> Any:
        """Return the component's state, None if it keeps none."""
        return self.call.get_state() if hasattr(self.call, "get_state") else None

    def set_state(self, state: object) -> None:
        """Restore a state returned by :meth:`get_state`."""
        if state is not None:
            self.call.set_state(state)


def _loader(kind: str) -> Callable[[], None]:
    return lambda: (import_module(_MODULES[kind]), None)[1]


COMPONENTS: dict[str, Registry[Component]] = {
    kind: Registry(kind.replace("_", " "), load=_loader(kind)) for kind in KINDS
}


def component(
    kind: str, name: str, *, paper: str = "", effect: str = "drop"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function or class as a component (decorator).

    Example:
        >>> @component("advantage_estimator", "first-turn", paper="none: an example")
        ... def first_turn(table, *, bonus: float = 1.0):
        ...     "Assign the whole return to the first turn."
        ...     return np.where(table.turn == 0, bonus * table.returns[table.owner], 0)
    """

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        COMPONENTS[kind].register(name, Component(kind, name, make, paper, effect))
        return make

    return decorate


def bind(kind: str, spec: Spec) -> BoundComponent:
    """Return the component that a configuration names, bound to its settings.

    Args:
        kind: One of ``KINDS``.
        spec: A name, a mapping with ``name`` and settings, or a function.

    Raises:
        ConfigError: If the component does not exist, or a setting is unknown or
            missing.
    """
    settings = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    if "name" not in settings:
        raise ConfigError(
            f"The {kind} {show(spec)} has no name. Add name, one of: "
            f"{', '.join(COMPONENTS[kind].names())}."
        )
    component = _find(kind, settings.pop("name"))
    general = _general_settings(component, settings)
    for key in settings:
        if key not in component.parameters:
            raise ConfigError(
                f"{kind} {component.name!r} has no setting {key!r}. "
                f"{did_you_mean(key, [*component.parameters, *general])}"
            )
        _check_setting(component, key, settings[key])
    for key, parameter in component.parameters.items():
        if parameter.default is parameter.empty and key not in settings:
            raise ConfigError(
                f"{kind} {component.name!r} needs {key!r}, e.g. "
                f"{{name: {component.name}, {key}: ...}}."
            )
    try:
        return BoundComponent(component, settings, **general)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind} {component.name!r}: {error}") from error


def _check_setting(component: Component, key: str, value: object) -> None:
    """Check a setting against its type annotation, if it has one."""
    default = component.parameters[key].default
    kind = hints_of(component.make).get(key, Any)
    if value is not default:
        require(f"{component.kind} {component.name}.{key}", value, kind)


def _general_settings(component: Component, settings: dict[str, Any]) -> dict[str, Any]:
    """Pop the settings of the kind (effect, weight) that the component lacks itself."""
    general: dict[str, Any] = {}
    if component.kind == "filter" and component.effect in EFFECTS:
        general["effect"] = effect = settings.pop("effect", component.effect)
        if effect not in EFFECTS:
            raise ConfigError(
                f"filter {component.name!r}: effect={effect!r}. "
                f"{did_you_mean(str(effect), EFFECTS)}"
            )
    if component.kind not in _UNWEIGHTED and "weight" not in component.parameters:
        general["weight"] = weight = settings.pop("weight", 1.0)
        if not is_number(weight) and not _is_schedule(component.kind, weight):
            also = " or pairs [[iteration, value], ...]" * _may_change(component.kind)
            raise ConfigError(
                f"{component.kind} {component.name!r}: weight={show(weight)} must be a "
                f"number{also}."
            )
    return general


def _may_change(kind: str) -> bool:
    return kind in ("reward", "loss_term")


def _is_schedule(kind: str, weight: object) -> bool:
    if not _may_change(kind) or not isinstance(weight, list | tuple) or not weight:
        return False
    pairs = all(isinstance(p, list | tuple) and len(p) == 2 for p in weight)
    if not pairs or not all(is_number(x) for p in weight for x in p):
        return False
    iterations = [p[0] for p in weight]
    return iterations == sorted(set(iterations))


def bind_all(kind: str, specs: Specs | None) -> list[BoundComponent]:
    """Return the bound components of a list; a single one needs no list."""
    if specs is None:
        return []
    if isinstance(specs, str | Mapping) or callable(specs):
        specs = [specs]
    return [bind(kind, spec) for spec in specs]


def _find(kind: str, name: object) -> Component:
    if callable(name):
        return Component(kind, getattr(name, "__name__", repr(name)), name)
    if not isinstance(name, str):
        raise ConfigError(f"The {kind} {name!r} is no name. Give the name as a string.")
    if ":" not in name:
        return COMPONENTS[kind].get(name)
    return Component(kind, name, import_object(name, kind))
