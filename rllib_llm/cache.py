"""Location of the on-disk cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder of cached models and games (``RLLIB_LLM_CACHE`` sets it)."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("RLLIB_LLM_CACHE", default / "rllib_llm")).expanduser()
