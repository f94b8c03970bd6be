"""Schema of a config class's settings: the declared ones, and RLlib's.

RLlib has no declarations. Its settings are read from the signatures and docstrings of
its fluent methods, as are those of methods that a user's config class writes itself.
"""

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
    "data",
    "replay",
    "preferences",
    "scorer",
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
    """A setting: one keyword of one fluent method.

    Other attributes of a config have no ``section``: RLlib's of which only the default
    is declared, and those that no method sets.

    Attributes:
        default: Its default; in a declaration NotProvided leaves RLlib's.
        doc: The text about it.
        kind: The type, with ranges and choices as ``Annotated`` metadata.
        annotation: The type as it is written; "" if none is.
        section: The method, e.g. ``"training"``.
        key: The keyword, e.g. ``"lr"``.
        attribute: The attribute of the config that holds it; None if it has none of
            its own (alarms).
        is_rllib: Whether RLlib declares it.
        is_state: Whether it is a state of the config object, and no setting.
    """

    default: Any
    doc: str = ""
    kind: Any = None
    annotation: str = ""
    section: str = ""
    key: str = ""
    attribute: str | None = None
    is_rllib: bool = False
    is_state: bool = False

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


def declarations(config_class: type[Any]) -> dict[str, Setting]:
    """Return all declarations of a class by attribute, those of base classes first."""
    merged: dict[str, Setting] = {}
    for base in reversed(config_class.__mro__):
        for name, given in vars(base).get("_declared", {}).items():
            base_setting = merged.get(name)
            if base_setting and (base_setting.section or not given.section):
                given = _changed(base_setting, given)
            merged[name] = given
    return merged


def declared_settings(config_class: type[Any], name: str) -> dict[str, Setting]:
    """Return the declared settings of one section, by key."""
    return {d.key: d for d in declarations(config_class).values() if d.section == name}


def _changed(base: Setting, given: Setting) -> Setting:
    """Return an inherited setting with what a subclass declares again."""
    changes: dict[str, Any] = {"default": given.default}
    if given.annotation:
        changes |= {"kind": given.kind, "annotation": given.annotation}
    if given.doc:
        changes["doc"] = given.doc
    return dataclasses.replace(base, **changes)


def is_being_listed(config_class: type[Any]) -> bool:
    """Return whether :func:`settings_of` is listing the class."""
    return config_class in _being_listed


def section_keys(config_class: type[Any], section: str) -> list[str]:
    """Return the keywords that ``config_class().<section>(...)`` accepts.

    Signatures of RLlib's methods are followed through ``**kwargs`` up the class
    hierarchy; keywords that RLlib marks as deprecated are left out.
    """
    declared = declared_settings(config_class, section)
    return [*declared, *_parameters(config_class, section)]


def _list_settings(config_class: type[Any]) -> Iterator[Setting]:
    default = config_class()
    for section in SECTIONS:
        for each in declared_settings(config_class, section).values():
            value = getattr(default, each.attribute) if each.attribute else None
            yield dataclasses.replace(each, default=value)
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
    """Return keywords that no declaration has, with their methods."""
    keywords: dict[str, tuple[Any, inspect.Parameter]] = {}
    methods = [c.__dict__[section] for c in config_class.__mro__ if section in vars(c)]
    for method in dict.fromkeys(inspect.unwrap(method) for method in methods):
        parameters = inspect.signature(method).parameters.values()
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and not _is_deprecated(p.default):
                keywords.setdefault(p.name, (method, p))
        # Without **kwargs the method accepts no keyword of its base classes.
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    left_out = {
        *WITHOUT_EFFECT.get(section, {}),
        *declared_settings(config_class, section),
    }
    return {key: value for key, value in keywords.items() if key not in left_out}


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
