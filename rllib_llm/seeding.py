"""Seeds that depend on their parts alone, on any machine and in any process."""

from __future__ import annotations

import hashlib
from typing import Any


def stable_seed(*parts: Any) -> int:
    """Return a seed in [0, 2**31) that depends on ``parts`` alone, on any machine."""
    # Not hash(): Python salts it per process.
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**31
