"""Strict parser of model-written JSON whose values can be serialised again."""

from __future__ import annotations

import json
from typing import Any

from rllib_llm.graders.json_text import read_json_prefix


def load_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If the text is not JSON, or its value cannot be encoded again.
    """
    value, end = load_json_prefix(text.lstrip())
    rest = text.lstrip()[end:].strip()
    if rest:
        raise ValueError(f"{rest[:20]!r} follows the value")
    return value


def load_json_prefix(text: str) -> tuple[Any, int]:
    """Return the JSON value at the start of ``text``, and the index of its end.

    Raises:
        ValueError: If :func:`~rllib_llm.graders.json_text.read_json_prefix` finds no
            value, or if the value cannot be encoded again.
    """
    value, end = read_json_prefix(text)
    # A lone surrogate parses but cannot be encoded, e.g. in the result of a tool.
    json.dumps(value, ensure_ascii=False).encode()
    return value, end
