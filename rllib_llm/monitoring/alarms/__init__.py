"""Alarms inside a run: what they look for, and what they do (docs/alarms.md)."""

from __future__ import annotations
