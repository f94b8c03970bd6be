"""Alarms of a run: their conditions and actions (docs/alarms.md)."""

from __future__ import annotations
