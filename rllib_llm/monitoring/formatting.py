"""Formatting of durations."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Return ``m:ss`` or ``h:mm:ss``; ``-`` for None."""
    if seconds is None:
        return "-"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{minute}:{second:02d}"
