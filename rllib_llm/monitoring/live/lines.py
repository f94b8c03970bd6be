"""Progress lines of long preparations on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_FIRST_S, _EVERY_S = 5.0, 10.0


def progress_lines() -> Callable[[str, float], None]:
    """Return a callback for ``prepare_language_model`` that prints its progress.

    It prints nothing in the first five seconds, then a line every ten seconds and one
    at the end of each phase.
    """
    began = time.monotonic()
    due = began + _FIRST_S

    def show(phase: str, fraction: float) -> None:
        nonlocal due
        now = time.monotonic()
        is_end = fraction >= 1.0 and now >= began + _FIRST_S
        if now < due and not is_end:
            return
        due = now + _EVERY_S
        sys.stderr.write(
            f"rllib_llm prepares the model: {phase} {fraction:.0%}, "
            f"{now - began:.0f} s\n"
        )
        sys.stderr.flush()

    return show
