"""Descriptions of types and values for messages."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, is_typeddict

from annotated_types import Ge, Gt, Interval, Le, Lt

from rllib_llm.schema.annotations import OneOf, Rule, SubclassOf

MAX_SHOWN = 200
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
    type(None): "None",
    dict: "a mapping",
    type: "a class",
}


def show(value: object, limit: int = MAX_SHOWN) -> str:
    """Return ``repr(value)``, cut to ``limit`` characters."""
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__ may raise anything
        text = f"<{type(value).__name__}, {type(error).__name__} in its repr>"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def split(kind: object) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its ``Annotated``, and the metadata."""
    if get_origin(kind) is not Annotated:
        return kind, ()
    base, *metadata = get_args(kind)
    return base, tuple(metadata)


def members(kind: object) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    base, _ = split(kind)
    if get_origin(base) in (Union, types.UnionType):
        return tuple(m for each in get_args(base) for m in members(each))
    return (kind,)


def choices_of(kind: object) -> tuple[Any, ...]:
    """Return the choices of all members of a type, () without any."""
    choices: list[Any] = []
    for member in members(kind):
        base, metadata = split(member)
        if get_origin(base) is Literal:
            choices += get_args(base)
        choices += [name for m in metadata if isinstance(m, OneOf) for name in m.names]
    return tuple(choices)


def bounds_of(kind: object) -> tuple[float | None, float | None]:
    """Return the lower and upper bound of a type, or of a list's elements."""
    for member in members(kind):
        plain, metadata = split(member)
        low, high, _, _ = limits(metadata)
        if get_origin(plain) is list:
            low, high = bounds_of(get_args(plain)[0])
        if low is not None or high is not None:
            return low, high
    return None, None


def limits(metadata: Sequence[Any]) -> tuple[Any, Any, bool, bool]:
    """Return the bounds, and whether each is inclusive."""
    low = high = None
    includes_low = includes_high = True
    for item in metadata:
        for each in item if isinstance(item, Interval) else (item,):
            if isinstance(each, Ge | Gt):
                includes_low = isinstance(each, Ge)
                low = each.ge if isinstance(each, Ge) else each.gt
            if isinstance(each, Le | Lt):
                includes_high = isinstance(each, Le)
                high = each.le if isinstance(each, Le) else each.lt
    return low, high, includes_low, includes_high


def describe(kind: object) -> str:
    """Return the end of "must be ..." for a type, e.g. "a number >= 0 or None"."""
    parts = members(kind)
    choices = choices_of(kind)
    named = [m for m in parts if not _is_choice(m)]
    words = [_describe_one(member) for member in named if member is not type(None)]
    if len(choices) == 1:
        words.append(repr(choices[0]))
    elif choices:
        words.append(f"one of {', '.join(map(str, choices))}")
    if type(None) in parts:
        words.append("None")
    return " or ".join(dict.fromkeys(words))


def _is_choice(kind: object) -> bool:
    base, metadata = split(kind)
    return get_origin(base) is Literal or any(isinstance(m, OneOf) for m in metadata)


def _describe_one(kind: object) -> str:
    base, metadata = split(kind)
    for item in metadata:
        if isinstance(item, Rule):
            return item.must_be
        if isinstance(item, SubclassOf):
            return f"a subclass of {item.path.partition(':')[2]}"
    if base in (int, float):
        return _WORDS[base] + _range_text(metadata)
    origin = get_origin(base) or base
    if origin is tuple or (is_list(origin) and origin is not Mapping):
        return _list_text(base)
    if origin in (dict, Mapping) or is_typeddict(base):
        return "a mapping"
    if origin is Callable:
        return "a function"
    if origin in _WORDS:
        return _WORDS[origin]
    return "anything" if base is Any else f"a {getattr(base, '__name__', base)}"


def is_list(origin: object) -> bool:
    """Return True for the origin of a type of lists."""
    return origin in (list, Sequence, Collection)


def _list_text(base: object) -> str:
    inner = [a for a in get_args(base) if a is not Ellipsis]
    if not inner or inner[0] is Any:
        return "a list"
    plurals = {str: "strings", int: "whole numbers", float: "numbers"}
    plural = plurals.get(split(inner[0])[0])
    return f"a list of {plural}" if plural else f"a list, each {describe(inner[0])}"


def _range_text(metadata: Sequence[Any]) -> str:
    low, high, includes_low, includes_high = limits(metadata)
    if low is not None and high is not None:
        left, right = "(["[includes_low], ")]"[includes_high]
        return f" in {left}{low}, {high}{right}"
    if low is not None:
        return f" {'>=' if includes_low else '>'} {low}"
    if high is not None:
        return f" {'<=' if includes_high else '<'} {high}"
    return ""
