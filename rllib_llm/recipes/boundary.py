"""Conversion of errors raised while a recipe is loaded into ConfigError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rllib_llm.errors import ConfigError, RLlibLLMError, summarize

# Longer messages are cut: they hide the error that they report.
MAX_MESSAGE = 2000


@contextlib.contextmanager
def errors_as_config_error(source: str) -> Iterator[None]:
    """Convert any error that is not one of the package's into a ConfigError.

    Recipes name user code, which may raise anything when it is imported or called,
    ``SystemExit`` included. ``KeyboardInterrupt`` is not converted.

    Args:
        source: Name of the recipe, for the message, e.g. ``"my.yaml"``.

    Raises:
        ConfigError: The original error is its cause.
    """
    try:
        yield
    except RLlibLLMError as error:
        text = str(error)
        if len(text) <= MAX_MESSAGE:
            raise
        raise type(error)(f"{text[:MAX_MESSAGE]}...") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{source} cannot be used: {summarize(error)}. Fix the setting or the code "
            "that raised it; --verbose shows the traceback."
        ) from error
