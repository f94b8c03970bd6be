"""Observations of OpenEnv servers to text, and text to their actions."""

from __future__ import annotations

import json
import re
from typing import Any

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_CLOSED = ("done", "reward", "metadata")


def observation_text(observation: dict[str, Any]) -> str:
    """Return the text of an observation.

    That of its only field with text, if there is exactly one; else all fields as JSON.
    ``metadata`` and fields that are None are left out.
    """
    fields = {
        name: value
        for name, value in observation.items()
        if name not in _CLOSED and value is not None
    }
    texts = [v for v in fields.values() if isinstance(v, str) and v.strip()]
    structures = [v for v in fields.values() if isinstance(v, dict | list) and v]
    if len(texts) == 1 and not structures:
        return texts[0]
    return json.dumps(fields, ensure_ascii=False)


def text_action(text: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the action in the model's text, or None if there is none.

    For a schema with one field beside ``metadata``: a string is the whole text, a word
    of an enumeration the last one in the text, a number the last one in the text. For
    any other schema: the last JSON object in the text. The action is checked against
    the schema.
    """
    fields = _fields(schema)
    action = _last_object(text)
    if len(fields) == 1:
        ((name, field),) = fields.items()
        if action is None or name not in action:
            value = _value(text, field)
            action = None if value is None else {name: value}
    if action is None:
        return None
    from jsonschema import Draft202012Validator

    return action if Draft202012Validator(schema).is_valid(action) else None


def action_hint(schema: dict[str, Any]) -> str:
    """Return how to write an action; empty if it is any text."""
    fields = _fields(schema)
    if len(fields) == 1:
        ((name, field),) = fields.items()
        if _choices(field):
            return f"Answer with one of: {', '.join(map(str, _choices(field)))}."
        kind = _kind(field)
        if kind == "string":
            return ""
        if kind in ("integer", "number"):
            return f"Answer with a number: {field.get('description') or name}."
    described = {
        name: field.get("description") or _kind(field) or "any"
        for name, field in fields.items()
    }
    return f"Answer with a JSON object: {json.dumps(described, ensure_ascii=False)}."


def _fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the properties of an action, references resolved."""
    return {
        name: _resolved(field, schema)
        for name, field in schema.get("properties", {}).items()
        if name != "metadata"
    }


def _resolved(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = str(field.get("$ref", ""))
    if not reference.startswith("#/"):
        return field
    target: Any = schema
    for part in reference[2:].split("/"):
        target = target.get(part, {}) if isinstance(target, dict) else {}
    return {**target, **{k: v for k, v in field.items() if k != "$ref"}}


def _kind(field: dict[str, Any]) -> str | None:
    kind = field.get("type")
    if kind is None and "anyOf" in field:  # how pydantic writes optional fields
        kinds = [part.get("type") for part in field["anyOf"]]
        kinds = [kind for kind in kinds if kind != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    return kind if isinstance(kind, str) else None


def _choices(field: dict[str, Any]) -> list[Any]:
    if _kind(field) == "boolean":
        return [True, False]
    return [field["const"]] if "const" in field else list(field.get("enum", ()))


def _value(text: str, field: dict[str, Any]) -> Any:
    choices, kind = _choices(field), _kind(field)
    if choices:
        # Longer words first, so that "left up" is not read as "left".
        words = {str(choice).lower(): choice for choice in choices}
        ordered = sorted(words, key=len, reverse=True)
        pattern = "|".join(re.escape(word) for word in ordered)
        named = re.findall(rf"(?<!\w)(?:{pattern})(?!\w)", text.lower())
        return words[named[-1]] if named else None
    if kind == "string":
        return text.strip() or None
    numbers = _NUMBER.findall(text) if kind in ("integer", "number") else []
    if not numbers or (kind == "integer" and "." in numbers[-1]):
        return None
    return int(numbers[-1]) if kind == "integer" else float(numbers[-1])


def _last_object(text: str) -> dict[str, Any] | None:
    """Return the last JSON object in a text that is not inside of another one."""
    decoder, last, at = json.JSONDecoder(), None, text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            last = value if isinstance(value, dict) else last
        at = text.find("{", end)
    return last
