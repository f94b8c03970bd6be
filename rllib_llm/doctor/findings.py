"""Results of the doctor's checks."""

from __future__ import annotations

import dataclasses

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Name of the check.
        status: ``"ok"``, ``"warn"`` (it works, but not well) or ``"fail"``.
        observed: Description of the observed state.
        remedy: Recommended action; None if there is no problem.
    """

    name: str
    status: str
    observed: str
    remedy: str | None = None


def size(number: float) -> str:
    """Return a number of bytes with a unit, e.g. ``"3 MiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
