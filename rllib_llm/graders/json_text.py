"""Strict parser of model-written JSON, and validation against a schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rllib_llm.errors import RLlibLLMError
from rllib_llm.graders.line_worker import LineWorker

MAX_CHARS = 100_000
MAX_DEPTH = 64
TIMEOUT_S = 5.0
_SPACE = " \t\r\n"
_WRONG_SCHEMA = "The schema is not a valid JSON Schema: {}. Correct the schema."


class JsonGraderError(RLlibLLMError):
    """The worker failed twice; the text is neither right nor wrong."""


# One process for all threads, started at the first check.
_WORKER = LineWorker("rllib_llm.graders.json_worker", JsonGraderError)


def json_problem(text: str, schema: Mapping[str, Any]) -> str | None:
    """Return the first violation of a JSON Schema by a text.

    The check runs in a worker process, which is killed after ``TIMEOUT_S``: schemas
    with patterns, references or alternatives take exponential time on some texts.

    Args:
        text: The model's text, of at most ``MAX_CHARS`` characters; lists and objects
            are nested at most ``MAX_DEPTH`` deep.
        schema: A JSON Schema (draft 2020-12 unless it names another). It must come
            from the environment, never from a model; references to other documents
            are errors.

    Returns:
        The first problem with its location; None for a valid text.

    Raises:
        ValueError: If the schema itself is invalid.
        JsonGraderError: If the worker failed twice.
    """
    try:
        packed = json.dumps(schema, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(_WRONG_SCHEMA.format(error)) from error
    if len(text) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    reply = _WORKER.ask(json.dumps([packed, text]), TIMEOUT_S)
    if reply is None:
        return f"the check took longer than {TIMEOUT_S:g} s"
    is_schema, problem = json.loads(reply)
    if not is_schema:
        raise ValueError(_WRONG_SCHEMA.format(problem))
    return problem


def read_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: As :func:`read_json_prefix`, and if text follows the value.
    """
    text = text.strip(_SPACE)
    value, end = read_json_prefix(text)
    if end < len(text):
        raise ValueError(f"{text[end : end + 20]!r} follows the value")
    return value


def read_json_prefix(text: str) -> tuple[Any, int]:
    """Return the JSON value at the start of a text, and the index of its end.

    Raises:
        ValueError: If there is no value, if a number is not finite (``NaN``,
            ``1e999``), or if the nesting exceeds ``MAX_DEPTH``.
    """
    try:
        value, end = _DECODER.raw_decode(text)
        is_deep = is_too_deep(value)
    # Python's parser is recursive, so hostile nesting exhausts the stack.
    except RecursionError:
        is_deep = True
    if is_deep:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    return value, end


def is_too_deep(value: object) -> bool:
    """Return whether lists and objects are nested more than ``MAX_DEPTH`` deep.

    ``repr`` and other recursive functions fail on deeper values.
    """
    # Level by level instead of recursively, for the same reason.
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer)]
    return bool(level)


def _inside(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:40]} is no finite number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
