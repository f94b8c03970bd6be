"""What a running trial tells the process that started it (docs/live.md)."""

from __future__ import annotations
