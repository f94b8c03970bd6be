"""Results of tools as text."""

from __future__ import annotations

import json
from typing import Any


def as_text(value: Any) -> str:
    """Return text as it is, anything else as JSON; never an empty text."""
    if value is None:
        return "Done."
    text = value if isinstance(value, str) else _as_json(value)
    # Half a surrogate pair cannot be encoded.
    return text.encode("utf-8", "replace").decode() or "(nothing)"


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def clip(text: str, most: int) -> str:
    """Return the text's beginning, and say how much is left out."""
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]}... ({left_out} more characters)"
