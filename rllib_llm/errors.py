"""Exceptions of the package.

Every message states the value, the rule and the remedy. All classes take one message
and can be pickled, so that they pass through Ray actors unchanged.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class RLlibLLMError(Exception):
    """Base class of this package's exceptions."""


class ConfigError(RLlibLLMError, ValueError):
    """A setting does not exist, is out of range, or contradicts another one."""


class EnvContractError(RLlibLLMError):
    """An environment violates the contract of :class:`rllib_llm.envs.TextEnv`."""


class EnvRunnerError(RLlibLLMError, RuntimeError):
    """Too few EnvRunners are left to sample with."""


class CallTimeoutError(RLlibLLMError, TimeoutError):
    """Another process did not answer a call within its time limit."""


class LearnerError(RLlibLLMError, RuntimeError):
    """A Learner has died, does not answer, or has failed while others wait for it."""


class EpisodeOverError(RLlibLLMError):
    """A limit of the training run has ended a conversation's episode."""


class TemplateError(RLlibLLMError, ValueError):
    """A tokenizer or chat template cannot be used for multi-turn training."""


class CheckpointError(RLlibLLMError):
    """A checkpoint is missing, incomplete, or belongs to another configuration."""


class StorageError(RLlibLLMError):
    """A run cannot be written: its disk is full."""


class ModelError(RLlibLLMError, ValueError):
    """A language model does not exist, or cannot be loaded or adapted."""


class MissingExtraError(RLlibLLMError, ImportError):
    """An optional dependency is needed; the message names the extra to install."""

    @classmethod
    def for_extra(cls, package: str, extra: str) -> MissingExtraError:
        """Build the error of a missing ``package`` that ``extra`` installs."""
        return cls(
            f"This feature needs the package {package!r}. "
            f"Install it with: pip install 'rllib-llm[{extra}]'"
        )


def summarize(error: BaseException, limit: int = 300) -> str:
    """Return type, message and origin of an error in one line.

    Args:
        error: Any error.
        limit: Maximum characters of the message.

    Returns:
        E.g. ``"KeyError: 'x' (maze.py:12)"``; the origin is the innermost frame.
    """
    try:
        text = " ".join(str(error).split())
    except Exception as broken:  # a user's exception may fail in __str__
        text = f"<{type(broken).__name__} in its message>"
    if len(text) > limit:
        text = f"{text[:limit]}..."
    summary = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return summary  # the message of a SyntaxError contains file and line
    return f"{summary} ({frames[-1].filename}:{frames[-1].lineno})"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return a hint with the most similar allowed name, or with all of them.

    Args:
        name: The given name.
        allowed: The allowed names.

    Returns:
        One sentence, e.g. ``"Did you mean 'lr'?"``.
    """
    names = sorted(allowed)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names) or '(none)'}."
