"""Live progress from running trials to the driver (docs/live.md)."""

from __future__ import annotations
