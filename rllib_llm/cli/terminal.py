"""Text that others wrote, made safe to print."""

from __future__ import annotations

import re

# Control characters but for line ends and tabs, and those that change the direction in
# which a terminal writes.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return ``text`` with every control character spelt out, e.g. ``\\x1b``.

    What a model or an environment writes could move the cursor, retitle the window or
    hide what was said otherwise.
    """
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)
