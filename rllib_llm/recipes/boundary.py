"""One place where whatever loading a recipe raises becomes a ConfigError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rllib_llm.errors import ConfigError, RLlibLLMError, summarize

# Characters of a message that is still read.
MAX_MESSAGE = 2000


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise ConfigError in the place of any error that is not one of the package's.

    Recipes name code of users, which may raise anything when it is imported or called,
    ``SystemExit`` included. Ctrl-C goes through.

    Args:
        what: What is being read, for the message, e.g. ``"my.yaml"``.

    Raises:
        ConfigError: Naming the error and its origin; the error is its cause.
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
            f"{what} cannot be used: {summarize(error)}. Mend the setting or the code "
            "that raised it; --verbose shows the traceback."
        ) from error
