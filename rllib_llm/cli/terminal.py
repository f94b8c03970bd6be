"""Escaping of untrusted text before it is printed."""

from __future__ import annotations

import re

# Control characters except tabs and line feeds, and characters that change the writing
# direction.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped, e.g. ``\\x1b``.

    Text of a model or an environment could otherwise move the cursor, change the title
    of the window or hide other text.
    """
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)
