"""Checking JSON that a model wrote against a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_CHARS = 100_000


def json_problem(text: str, schema: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a JSON text.

    Args:
        text: What the model wrote.
        schema: A JSON Schema (draft 2020-12 unless it says otherwise). It comes from
            the environment, never from a model; references lead nowhere outside it.

    Returns:
        The first problem in words, with its place; None if there is none.

    Raises:
        ValueError: If the schema itself is wrong.
    """
    # Installed with Ray; imported late, since few need it.
    import jsonschema
    from jsonschema.validators import validator_for
    from referencing import Registry

    checker = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        checker.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"This is no JSON Schema: {error.message}") from error
    if len(text) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
    problems = checker(schema, registry=Registry()).iter_errors(value)
    problem = jsonschema.exceptions.best_match(problems)
    return problem and f"{problem.json_path}: {problem.message}"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")
