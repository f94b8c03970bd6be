"""Positional arguments of tag calls: conversion to and from text by schema."""

from __future__ import annotations

import json
import math
from typing import Any

from rllib_llm.errors import ConfigError
from rllib_llm.tools.json_texts import load_json, load_json_prefix

_ANY = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


def split_arguments(text: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return comma-separated arguments by name, in the order of the schema.

    Lists and objects are JSON; a string before the last argument may be JSON, too. A
    string in the last place is taken verbatim. A value that cannot be converted stays
    text, which validation against the schema then rejects.

    Args:
        text: Text between the tags.
        parameters: JSON schema of the tool.
    """
    properties = parameters.get("properties", {})
    rest: str | None = text.strip()
    if not rest:
        return {}
    if not properties:
        return {"text": rest}  # rejected by validation: the tool takes no arguments
    arguments = {}
    for number, (name, schema) in enumerate(properties.items(), start=1):
        if rest is None:
            break
        kinds = _kinds(schema)
        if number == len(properties):
            arguments[name] = _convert(rest, kinds)
            break
        arguments[name], rest = _take(rest, kinds)
    return arguments


def join_arguments(
    name: str, arguments: dict[str, Any], parameters: dict[str, Any]
) -> str:
    """Return the text that :func:`split_arguments` reads as ``arguments``.

    Args:
        name: Name of the tool, for the message.
        arguments: Arguments by name.
        parameters: JSON schema of the tool.

    Raises:
        ConfigError: If tags cannot express the arguments, e.g. because one before the
            last is missing.
    """
    properties = parameters.get("properties", {})
    last = next(reversed(properties), None)
    text = ", ".join(
        _plain(value, _kinds(properties.get(n, {})), is_last=n == last)
        for n, value in arguments.items()
    )
    closes = f"</{name}>" in text
    read = None if closes else split_arguments(text, parameters)
    if read is None or _stripped(read) != _stripped(arguments):
        raise ConfigError(
            f"The arguments {arguments!r} of {name!r} cannot be written as tags: "
            f"<{name}>{text}</{name}> would be read as {read!r}. Tags hold all "
            "arguments up to the last one given, in order; use "
            "tool_format='hermes' for others."
        )
    return text


def _take(text: str, kinds: frozenset[str]) -> tuple[Any, str | None]:
    """Return the value before the next comma, and the rest (None at the end)."""
    if text[0] in '"[{' and (text[0] == '"' or kinds & {"array", "object"}):
        try:
            value, end = load_json_prefix(text)
        except ValueError:
            end = 0
        rest = text[end:].lstrip()
        if end and rest[:1] in ("", ","):
            return value, rest[1:].strip() if rest else None
    value, comma, rest = text.partition(",")
    return _convert(value.strip(), kinds), rest.strip() if comma else None


def _convert(text: str, kinds: frozenset[str]) -> Any:
    """Return the text as a value of one of these types, or unchanged."""
    if "null" in kinds and text == "null":
        return None
    if kinds - {"null"} == {"string"}:
        return text
    if "boolean" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind, read in (("integer", int), ("number", float)):
        try:
            value = read(text) if kind in kinds else math.nan
        except ValueError:
            continue
        if isinstance(value, int) or math.isfinite(value):
            return value
    if text[:1] in ('"', "[", "{") and kinds & {"array", "object"}:
        try:
            return load_json(text)
        except ValueError:
            return text
    return text


def _plain(value: object, kinds: frozenset[str], *, is_last: bool) -> str:
    """Return a value as text."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    stands = is_last or not ("," in value or value.startswith('"'))
    if stands and _convert(value.strip(), kinds) == value.strip():
        return value
    return json.dumps(value, ensure_ascii=False)


def _kinds(schema: dict[str, Any]) -> frozenset[str]:
    """Return the JSON types that a schema accepts."""
    kinds: set[str] = set()
    for part in (schema, *schema.get("anyOf", ())):
        named = part.get("type", ())
        kinds |= {named} if isinstance(named, str) else set(named)
    if not kinds:
        return _ANY
    return frozenset(kinds | ({"null"} if schema.get("nullable") else set()))


def _stripped(arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: v.strip() if isinstance(v, str) else v for k, v in arguments.items()}
