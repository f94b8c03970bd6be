"""Worker process of json_problem, which checks JSON texts against schemas.

``python -m rllib_llm.graders.json_worker MEMORY_BYTES`` reads JSON lines ``[schema,
text]``, both as texts, and writes ``[whether the schema is valid, problem or null]``.
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
    """The schema is invalid, or refers to another document."""


def main() -> None:
    """Serve until standard input ends."""
    serve(_answer)


def _answer(line: str) -> str:
    try:
        problem, is_schema = _problem(*json.loads(line)), True
    except WrongSchema as error:
        problem, is_schema = str(error), False
    return json.dumps([is_schema, problem and _clip(problem)])


def _problem(packed: str, text: str) -> str | None:
    """Return the problem of a text, or None."""
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
    # The library compares all pairs; hashing takes time linear in the text.
    is_list = wanted and isinstance(value, list)
    if is_list and len({_hashable(item) for item in value}) < len(value):
        yield jsonschema.ValidationError("it has non-unique elements")


def _multiple_of(check: Any, of: float, value: Any, _: Any) -> Iterator[Any]:
    # Exact fractions of the decimal notation: as floats, 0.3 % 0.1 is not 0.
    is_number = check.is_type(value, "number")
    if is_number and Fraction(repr(value)) % Fraction(repr(of)):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {of}")


def _hashable(value: object) -> Any:
    """Return a key that is equal for equal JSON values."""
    if isinstance(value, dict):
        return "object", frozenset((k, _hashable(v)) for k, v in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_hashable, value))
    # In Python True == 1 and hash(True) == hash(1); in JSON they differ.
    return isinstance(value, bool), value


def _clip(text: str) -> str:
    """Return a message that is short and can be encoded."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."


if __name__ == "__main__":
    main()
