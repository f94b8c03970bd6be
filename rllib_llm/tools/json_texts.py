"""JSON as a model writes it: read strictly, and never deeper than can be written."""

from __future__ import annotations

import json
from typing import Any

from rllib_llm.graders.json_text import read_json_prefix


def load_json(text: str) -> Any:
    """Return JSON that can be written and encoded again.

    Raises:
        ValueError: Otherwise.
    """
    value, end = load_json_prefix(text.lstrip())
    rest = text.lstrip()[end:].strip()
    if rest:
        raise ValueError(f"{rest[:20]!r} follows the value")
    return value


def load_json_prefix(text: str) -> tuple[Any, int]:
    """Return the JSON value that ``text`` begins with, and where it ends.

    Raises:
        ValueError: If there is none, as
            :func:`~rllib_llm.graders.json_text.read_json_prefix` reads it, or it could
            not be encoded again.
    """
    value, end = read_json_prefix(text)
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair fails
    return value, end
