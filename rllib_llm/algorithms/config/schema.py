"""Schema of a config class's settings, read from its fluent methods' signatures."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional, get_type_hints

from rllib_llm.algorithms.config.rllib_kinds import RLLIB_KINDS, WITHOUT_EFFECT
from rllib_llm.schema import bounds_of, choices_of, describe
from rllib_llm.schema.describing import members

if TYPE_CHECKING:
    from collections.abc import Callable

SECTIONS = (
    "language_model",
    "generation",
    "rollouts",
    "multi_agent",
    "league",
    "sft",
    "training",
    "alarms",
    "env_runners",
    "learners",
    "resources",
    "evaluation",
    "debugging",
    "reporting",
    "checkpointing",
    "fault_tolerance",
)
_ARGS = re.compile(r"^Args:\n((?:[ ]+.*\n|\n)*)", re.MULTILINE)
_ARG = re.compile(r"^(\w+)(?: \(.*?\))?: ?((?:.*\n)(?:[ ]+.*\n|\n)*)", re.MULTILINE)
# Classes whose settings are being listed: calls are not checked during that.
_being_listed: set[type[Any]] = set()


@dataclasses.dataclass(frozen=True)
class Setting:
    """One keyword of one fluent method.

    Attributes:
        section: The method, e.g. ``"training"``.
        key: The keyword, e.g. ``"lr"``.
        attribute: The attribute of the config that holds it; None if it has none of
            its own (alarms).
        default: Default of the config class.
        kind: The type, with ranges and choices as ``Annotated`` metadata.
        doc: The docstring's text about it.
        is_rllib: Whether RLlib declares it.
    """

    section: str
    key: str
    attribute: str | None
    default: Any
    kind: Any
    doc: str
    is_rllib: bool

    @property
    def path(self) -> str:
        """The dotted path in a recipe, e.g. ``"training.lr"``."""
        return f"{self.section}.{self.key}"

    @property
    def rule(self) -> str:
        """The type in words, e.g. ``"a number >= 0"``."""
        return describe(self.kind)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The choices, () if it has none."""
        return choices_of(self.kind)

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The least and the greatest number, None for an open end."""
        return bounds_of(self.kind)

    @property
    def takes_none(self) -> bool:
        """True if None is a valid value."""
        return type(None) in members(self.kind)


@functools.cache
def settings_of(config_class: type[Any]) -> dict[str, Setting]:
    """Return every setting of a config class by its path, section by section.

    Keywords that RLlib marks as deprecated, and those without meaning for whole
    episodes of text, are left out.
    """
    # RLlib's configs have no schema: the attribute of each keyword is found by calling
    # the method with a marker.
    _being_listed.add(config_class)
    try:
        return {setting.path: setting for setting in _list_settings(config_class)}
    finally:
        _being_listed.discard(config_class)


@functools.cache
def settings_by_attribute(config_class: type[Any]) -> dict[str, Setting]:
    """Return the settings of a config class by the attribute that holds each."""
    # mypy does not see that classes are hashable.
    settings = settings_of(config_class)  # type: ignore[arg-type]
    return {s.attribute: s for s in settings.values() if s.attribute}


def is_being_listed(config_class: type[Any]) -> bool:
    """Return whether :func:`settings_of` is listing the class."""
    return config_class in _being_listed


def section_keys(config_class: type[Any], section: str) -> list[str]:
    """Return the keywords that ``config_class().<section>(...)`` accepts.

    Signatures are followed through ``**kwargs`` up the class hierarchy; keywords that
    RLlib marks as deprecated are left out.
    """
    return list(_parameters(config_class, section))


def _list_settings(config_class: type[Any]) -> Iterator[Setting]:
    # Some classes hold only a part of the settings and are not configs.
    default = config_class()
    for section in SECTIONS:
        for key, (method, parameter) in _parameters(config_class, section).items():
            attribute = _attribute(config_class, section, key)
            value = getattr(default, attribute) if attribute else None
            is_rllib = method.__module__.startswith("ray.")
            yield Setting(
                section=section,
                key=key,
                attribute=attribute,
                default=value,
                kind=_kind(method, parameter, value, is_rllib),
                doc=_docs(method).get(key, ""),
                is_rllib=is_rllib,
            )


def _parameters(
    config_class: type[Any], section: str
) -> dict[str, tuple[Any, inspect.Parameter]]:
    """Return keywords with the method that declares them, most derived first."""
    declared: dict[str, tuple[Any, inspect.Parameter]] = {}
    for method in _methods(config_class, section):
        parameters = inspect.signature(method).parameters.values()
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and not _is_deprecated(p.default):
                declared.setdefault(p.name, (method, p))
        # Without **kwargs the method accepts no keyword of its base classes.
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    ignored = WITHOUT_EFFECT.get(section, {})
    return {key: value for key, value in declared.items() if key not in ignored}


def _methods(config_class: type[Any], section: str) -> list[Any]:
    """Return the methods whose keywords form a section, most derived first."""
    methods = [c.__dict__[section] for c in config_class.__mro__ if section in vars(c)]
    # The settings that all algorithms share are declared once, in _llm_training().
    if section == "training" and hasattr(config_class, "_llm_training"):
        methods.insert(0, config_class._llm_training)
    return list(dict.fromkeys(inspect.unwrap(method) for method in methods))


def _is_deprecated(default: object) -> bool:
    from ray._common.deprecation import DEPRECATED_VALUE

    return isinstance(default, int) and default == DEPRECATED_VALUE


def _kind(
    method: Callable[..., Any],
    parameter: inspect.Parameter,
    default: object,
    is_rllib: bool,
) -> Any:
    if not is_rllib:
        return _hints(method)[parameter.name]
    if parameter.name in RLLIB_KINDS:
        return RLLIB_KINDS[parameter.name]
    kind = parameter.annotation
    if kind is parameter.empty:
        return Any
    if default is None:
        return Optional[kind]  # noqa: UP045  (kind may be a forward reference)
    # RLlib annotates with Optional because of its default NotProvided; None is no
    # value.
    given_types = [member for member in members(kind) if member is not type(None)]
    united = given_types[0]
    for member in given_types[1:]:
        united = united | member
    return united


@functools.cache
def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(method, include_extras=True)


@functools.cache
def _docs(method: Callable[..., Any]) -> dict[str, str]:
    """Return the Args of a Google docstring, by name."""
    args = _ARGS.search((inspect.getdoc(method) or "") + "\n")
    if args is None:
        return {}
    listed = textwrap.dedent(args[1])
    return {name: " ".join(text.split()) for name, text in _ARG.findall(listed)}


def _attribute(config_class: type[Any], section: str, key: str) -> str | None:
    """Return the attribute that stores a keyword, located by storing a marker."""
    config, marker = config_class(), object()
    with contextlib.suppress(Exception):  # some methods refuse the marker
        getattr(config, section)(**{key: marker})
    for name, value in vars(config).items():
        if value is marker:
            return name
    return key if hasattr(config, key) else None
