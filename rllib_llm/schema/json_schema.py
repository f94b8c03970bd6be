"""JSON Schema of type annotations, for editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from rllib_llm.schema.annotations import OneOf
from rllib_llm.schema.describing import is_list, limits, members, split

SEARCH_SPACE = {"$ref": "#/$defs/search_space"}
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def json_schema_of(kind: object) -> dict[str, Any]:
    """Return the JSON Schema of the values that a type admits in a recipe.

    Every value may also be a search space. Conditions that JSON Schema cannot express,
    and types that YAML cannot write, admit anything.
    """
    schemas: list[dict[str, Any]] = []
    for member in members(kind):
        schema = _schema_of_member(member)
        if not schema:
            return {}
        if schema not in schemas:
            schemas.append(schema)
    return {"anyOf": [*schemas, SEARCH_SPACE]}


def _schema_of_member(kind: object) -> dict[str, Any]:
    base, metadata = split(kind)
    origin = get_origin(base) or base
    choices = [list(each.names) for each in metadata if isinstance(each, OneOf)]
    if choices:
        return {"enum": choices[0]}
    if origin is Literal:
        return {"enum": list(get_args(base))}
    if base is None or base is type(None):
        return {"type": "null"}
    if base in _SCALARS:
        return {"type": _SCALARS[base], **_range(metadata)}
    if is_typeddict(base):
        hints = get_type_hints(base, include_extras=True)
        properties = {key: json_schema_of(each) for key, each in hints.items()}
        return {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
    if origin in (dict, Mapping):
        inner = get_args(base)
        values = json_schema_of(inner[1]) if len(inner) == 2 else {}
        return {"type": "object", "additionalProperties": values}
    if origin is tuple or is_list(origin):
        inner = tuple(each for each in get_args(base) if each is not Ellipsis)
        same = len(set(inner)) == 1
        return {
            "type": "array",
            **({"items": json_schema_of(inner[0])} if same else {}),
        }
    return {}


def _range(metadata: tuple[Any, ...]) -> dict[str, float]:
    low, high, includes_low, includes_high = limits(metadata)
    bounds: dict[str, float] = {}
    if low is not None:
        bounds["minimum" if includes_low else "exclusiveMinimum"] = low
    if high is not None:
        bounds["maximum" if includes_high else "exclusiveMaximum"] = high
    return bounds
