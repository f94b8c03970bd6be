"""Conversion of tool results to text."""

from __future__ import annotations

import json


def as_text(value: object) -> str:
    """Return text unchanged and other values as JSON, never an empty string."""
    if value is None:
        return "Done."
    text = value if isinstance(value, str) else _as_json(value)
    # A lone surrogate cannot be encoded, and tokenizers would fail on it.
    return text.encode("utf-8", "replace").decode() or "(nothing)"


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def clip(text: str, most: int) -> str:
    """Return the beginning of a text, with the number of characters left out."""
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[:most]}... ({left_out} more characters)"
