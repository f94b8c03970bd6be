"""Declaration of settings: type, default and text in one place.

A setting is an annotated name in the body of a config class. Without an annotation it
changes the default of an inherited setting, or of one of RLlib's::

    class MyConfig(GRPOConfig):
        bonus: NonNegativeFloat = setting(0.5, "Reward of a solved task.")
        group_size = setting(4)

The fluent methods with their signatures and docstrings, and the schema that checks and
documents settings, are made from the declarations.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.schema import Setting, declarations
from rllib_llm.rllib_bases import RLlibConfig

_Config = TypeVar("_Config")
_TRAINING = "training"
# Attribute of fluent methods made here: the docstring without the arguments.
TEXT = "section_text"


def setting(
    default: object, doc: str = "", *, key: str = "", kind: object = None
) -> Any:
    """Declare a setting in the body of a config class, or another default of one.

    Args:
        default: The default, copied for every config; NotProvided: RLlib's.
        doc: Text about it.
        key: The keyword; "": the attribute's name without the section's prefix.
        kind: The type, if the method accepts other values than the attribute holds.
    """
    annotation = "" if kind is None else inspect.formatannotation(kind)
    return Setting(default, " ".join(doc.split()), kind, annotation, key=key)


def state(default: object) -> Any:
    """Declare an attribute that is a state of the config object, not a setting."""
    return Setting(default, is_state=True)


class fluent_method:
    """A fluent method, in the body of the class that declares its settings.

    As a decorator it keeps the code of a method, which stores the settings itself. A
    class has at most one; without any its settings are those of ``training``.

    Args:
        text: The method's docstring, without the arguments.
        prefix: Prefix of the attributes' names.
        others: Settings by key that are no attributes.
    """

    def __init__(
        self,
        text: str = "",
        *,
        prefix: str = "",
        others: Mapping[str, Setting] | None = None,
    ) -> None:
        self.text = inspect.cleandoc(text)
        self.prefix = prefix
        self.others = others or {}
        self.method: Callable[..., Any] | None = None

    def __call__(self, method: Callable[..., Any]) -> fluent_method:
        self.method, self.text = method, inspect.getdoc(method) or ""
        return self

    if TYPE_CHECKING:  # at run time a function is in its place

        def __get__(self, config: _Config, owner: object) -> Callable[..., _Config]: ...


class DeclaredSettings(RLlibConfig):
    """Base class of config classes: makes fluent methods from declarations."""

    _declared: Mapping[str, Setting] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = {k for k, d in declarations(cls).items() if d.section}
        methods = {k: v for k, v in vars(cls).items() if isinstance(v, fluent_method)}
        cls._declared = _take_declarations(cls, methods)
        merged = declarations(cls)
        settings = {k: merged[k] for k, d in cls._declared.items() if d.section}
        for name in {*methods, *(d.section for d in settings.values())}:
            attributes = {
                d.key: d.attribute
                for k, d in settings.items()
                if d.section == name and d.attribute and k not in inherited
            }
            setattr(cls, name, _method(cls, name, methods.get(name), attributes))

    def _set_declared_defaults(self) -> None:
        for name, declared in declarations(type(self)).items():
            if declared.default is NotProvided:
                continue
            is_new = declared.annotation or declared.is_state
            if not is_new and not hasattr(self, name):
                raise TypeError(
                    f"{type(self).__name__}: {name} = setting({declared.default!r}) "
                    "changes the default of a setting that does not exist. Correct the "
                    f"name, or declare a new one: {name}: TYPE = setting(DEFAULT, TEXT)"
                )
            setattr(self, name, copy.deepcopy(declared.default))


def _take_declarations(
    cls: type[Any], methods: Mapping[str, fluent_method]
) -> dict[str, Setting]:
    """Remove the declarations from a class and return them."""
    if len(methods) > 1:
        raise TypeError(
            f"{cls.__name__} has the methods {', '.join(methods)}: which of them has "
            "its settings is not known. Write one class for each."
        )
    section, method = next(iter(methods.items()), (_TRAINING, fluent_method()))
    declared = {
        key: dataclasses.replace(each, section=section, key=key)
        for key, each in method.others.items()
    }
    for attribute, each in list(vars(cls).items()):
        if not isinstance(each, Setting):
            continue
        # Like RLlib's settings, they are attributes of config objects only.
        delattr(cls, attribute)
        each = _with_type(cls, attribute, each)
        if each.annotation:
            each = dataclasses.replace(
                each,
                section=section,
                key=each.key or attribute.removeprefix(method.prefix),
                attribute=attribute,
            )
        declared[attribute] = each
    return declared


def _with_type(cls: type[Any], name: str, given: Setting) -> Setting:
    """Add the type that the class's body gives."""
    text = vars(cls).get("__annotations__", {}).get(name)
    if text is None or given.is_state:
        return given
    if given.kind is None:
        hint = types.SimpleNamespace(__annotations__={name: text})
        # Code that is executed without a module has types instead of their names.
        names = getattr(sys.modules.get(cls.__module__), "__dict__", {})
        kind = get_type_hints(hint, names, include_extras=True)[name]
        text = text if isinstance(text, str) else inspect.formatannotation(text)
        given = dataclasses.replace(given, kind=kind, annotation=text)
    return given


def _method(
    cls: type[Any],
    name: str,
    given: fluent_method | None,
    attributes: Mapping[str, str],
) -> Callable[..., Any]:
    """Return the fluent method of a section.

    Args:
        cls: The class that gets it.
        name: The section.
        given: The method's text and code; None: those of the base class.
        attributes: Attributes of the keywords that it stores. It passes others to the
            method of the base class, RLlib's in the end.
    """

    # A method that the class writes itself, as RLlib's configs do.
    written = vars(cls).get(name) if given is None else None

    def method(self: Any, **settings: Any) -> Any:
        others = {k: v for k, v in settings.items() if k not in attributes}
        if written is not None:
            written(self, **others)
        # Not without any: RLlib's method of this name may be a deprecated one.
        elif others:
            getattr(super(cls, self), name)(**others)
        for key, attribute in attributes.items():
            if settings.get(key, NotProvided) is not NotProvided:
                setattr(self, attribute, settings[key])
        return self

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    made: Callable[..., Any] = method
    if written is not None:
        made = functools.wraps(written)(method)
    elif given is not None and given.method is not None:
        made = given.method
    text = given.text if given is not None else inspect.getdoc(written) or ""
    setattr(made, TEXT, text)
    return made
