"""Parser of environments on the command line, ``NAME[:key=value,...]``."""

from __future__ import annotations

import re
from typing import Any

from rllib_llm.errors import ConfigError
from rllib_llm.recipes.overrides import apply_overrides

# A comma that begins another option; values in YAML may contain commas too.
_NEXT_OPTION = re.compile(r",(?=[A-Za-z_]\w*=)")


def parse_env(text: str) -> tuple[str, dict[str, Any]]:
    """Parse ``NAME[:key=value,...]``, where NAME may be ``package.module:Name``.

    Raises:
        ConfigError: The name is missing.
    """
    name, colon, options = text.rpartition(":")
    if not colon or "=" not in options:
        name, options = text, ""
    if not name or "=" in name:
        raise ConfigError(
            f"{text!r} does not name an environment. Give NAME or NAME:key=value,..., "
            "e.g. frozen_lake-v0:size=4."
        )
    return name, apply_overrides({}, _NEXT_OPTION.split(options) if options else [])
