"""What the doctor says about one thing."""

from __future__ import annotations

import dataclasses

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What.
        status: ``"ok"``, ``"warn"`` (it works, but not well) or ``"fail"``.
        found: What is there.
        remedy: What to do about it; None where all is well.
    """

    name: str
    status: str
    found: str
    remedy: str | None = None


def size(number: float) -> str:
    """Return a number of bytes in readable units."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
