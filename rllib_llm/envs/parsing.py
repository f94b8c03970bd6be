"""Parsers of completions and validators of options, for authors of environments."""

from __future__ import annotations

import re
from collections import deque

from rllib_llm.errors import ConfigError


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of ``pattern`` in ``text``, or None.

    Models that reason aloud mention actions before they decide, so the last mention
    counts. All shipped environments follow this rule.
    """
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def last_tagged(pattern: re.Pattern[str], text: str) -> tuple[str, str] | None:
    r"""Return the name and the content of the last tag in a text.

    Args:
        pattern: Its first group is the name, its second the content. A content that
            excludes the opening tag, as in ``<(a)>((?:(?!<\1>).)*?)</\\1>``, keeps the
            time linear in texts with many unclosed tags.
        text: The model's text.

    Returns:
        Both, the content stripped; None without a tag, or with an empty one.
    """
    match = last_match(pattern, text)
    content = match.group(2).strip() if match else ""
    return (match.group(1), content) if match and content else None


def require_int(name: str, value: object, low: int, high: int) -> int:
    """Return ``value`` if it is an integer in [low, high].

    Raises:
        ConfigError: Otherwise.
    """
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise ConfigError(f"{name}={value!r} must be an int from {low} to {high}.")


def require_float(name: str, value: object, low: float, high: float) -> float:
    """Return ``value`` as a float if it is a number in [low, high].

    Raises:
        ConfigError: Otherwise.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, int | float) and is_number and low <= value <= high:
        return float(value)
    raise ConfigError(f"{name}={value!r} must be a number from {low} to {high}.")


def require_bool(name: str, value: object) -> bool:
    """Return ``value`` if it is a bool.

    Raises:
        ConfigError: Otherwise.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} must be true or false.")
    return value


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``.

    Raises:
        ConfigError: Otherwise.
    """
    if value not in choices:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(choices)}.")
    return str(value)
