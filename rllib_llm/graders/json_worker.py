"""The worker of json_problem: checks JSON texts against schemas, line by line.

``python -m rllib_llm.graders.json_worker MEMORY_BYTES`` reads JSON lines ``[schema,
text]``, both as texts, and writes ``[whether the schema is one, problem or null]``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import jsonschema
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from rllib_llm.graders.json_text import read_json
from rllib_llm.graders.line_server import serve

_MAX_MESSAGE = 500


class WrongSchema(Exception):
    """The schema is none, or refers to something outside it."""


def main() -> None:
    """Serve until standard input ends."""
    serve(_answer)


def _answer(line: str) -> str:
    try:
        found, is_schema = _problem(*json.loads(line)), True
    except WrongSchema as error:
        found, is_schema = str(error), False
    return json.dumps([is_schema, found and _clip(found)])


def _problem(packed: str, text: str) -> str | None:
    """Return what is wrong with a text in words, or None."""
    check = _validator(packed)
    try:
        value = read_json(text)
    except ValueError as error:
        return f"no JSON: {error}"
    try:
        problem = jsonschema.exceptions.best_match(check.iter_errors(value))
    except Unresolvable as error:
        raise WrongSchema(f"{error} leads nowhere inside it") from None
    except (RecursionError, MemoryError) as error:
        return f"it cannot be checked: {type(error).__name__}"
    return problem and f"{problem.json_path}: {problem.message}"


@functools.lru_cache(maxsize=64)
def _validator(packed: str) -> Any:
    schema = json.loads(packed)
    checker = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        checker.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise WrongSchema(error.message) from None
    rules = {"uniqueItems": _unique_items, "multipleOf": _multiple_of}
    return extend(checker, rules)(schema, registry=Registry())


def _unique_items(_: Any, wanted: bool, value: Any, __: Any) -> Iterator[Any]:
    # The library compares all pairs; this takes time linear in the text.
    is_list = wanted and isinstance(value, list)
    if is_list and len({_hashable(item) for item in value}) < len(value):
        yield jsonschema.ValidationError("it has non-unique elements")


def _multiple_of(check: Any, of: float, value: Any, _: Any) -> Iterator[Any]:
    # Exact, as the numbers are written: 0.3 is a multiple of 0.1.
    is_number = check.is_type(value, "number")
    if is_number and Fraction(repr(value)) % Fraction(repr(of)):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {of}")


def _hashable(value: Any) -> Any:
    """Return a key that is equal for values that are equal in JSON."""
    if isinstance(value, dict):
        return "object", frozenset((k, _hashable(v)) for k, v in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    return isinstance(value, bool), value


def _clip(text: str) -> str:
    """Return a message that can be shown and encoded."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."


if __name__ == "__main__":
    main()
