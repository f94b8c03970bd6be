"""The error tree of the package.

Every message says what was given, what is needed, and how to mend it. All classes
take one message and survive pickling, so they cross Ray actors unchanged.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class RLlibLLMError(Exception):
    """Base class of everything this package raises on purpose."""


class ConfigError(RLlibLLMError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class EnvContractError(RLlibLLMError):
    """An environment broke the contract of :class:`rllib_llm.envs.TextEnv`."""


class EnvRunnerError(RLlibLLMError, RuntimeError):
    """No EnvRunner is left to sample with."""


class EpisodeOverError(RLlibLLMError):
    """A conversation cannot go on: a limit of the training run has ended it."""


class TemplateError(RLlibLLMError, ValueError):
    """A tokenizer or chat template cannot be used for multi-turn training."""


class CheckpointError(RLlibLLMError):
    """A checkpoint is missing, incomplete, or belongs to another configuration."""


class StorageError(RLlibLLMError):
    """A run cannot be written: its disk is full."""


class ModelError(RLlibLLMError, ValueError):
    """A language model cannot be found, loaded, or adapted as asked."""


class MissingExtraError(RLlibLLMError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""

    @classmethod
    def for_extra(cls, package: str, extra: str) -> MissingExtraError:
        """Build the message for ``package``, which the extra ``extra`` installs."""
        return cls(
            f"This feature needs the package {package!r}. "
            f"Install it with: pip install 'rllib-llm[{extra}]'"
        )


def summarize(error: BaseException, limit: int = 300) -> str:
    """Return type, message and origin of an error in one line.

    Args:
        error: Any error.
        limit: Most characters of the message.

    Returns:
        E.g. ``"KeyError: 'x' (maze.py:12)"``; the origin is the innermost frame.
    """
    try:
        text = " ".join(str(error).split())
    except Exception as broken:
        text = f"<{type(broken).__name__} in its message>"
    if len(text) > limit:
        text = f"{text[:limit]}..."
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return named  # the message of a SyntaxError names file and line
    return f"{named} ({frames[-1].filename}:{frames[-1].lineno})"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint naming the nearest known name, or listing all of them.

    Args:
        name: What was given.
        known: The valid names.

    Returns:
        One sentence, e.g. ``"Did you mean 'lr'?"``.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names) or '(none)'}."
