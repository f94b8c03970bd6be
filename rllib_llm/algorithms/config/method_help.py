"""Signatures and docstrings of fluent methods, from the declarations of settings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.declarations import TEXT
from rllib_llm.algorithms.config.schema import declared_settings, section_keys

# Words are not broken: a line break after a hyphen would read as a space.
_ARGS = textwrap.TextWrapper(
    88,
    initial_indent=" " * 4,
    subsequent_indent=" " * 8,
    break_long_words=False,
    break_on_hyphens=False,
)


def describe_method(
    method: Callable[..., Any], config_class: type[Any], section: str
) -> None:
    """Give a section's method the keywords and texts of its declared settings.

    RLlib's methods, and those that a config class writes itself, keep theirs.
    """
    if not hasattr(method, TEXT):
        return
    declared = declared_settings(config_class, section)
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [
        Parameter(
            key,
            Parameter.KEYWORD_ONLY,
            default=NotProvided,
            annotation=setting.annotation,
        )
        for key, setting in declared.items()
    ]
    texts = [f"{key} ({s.rule}): {s.doc}" for key, s in declared.items()]
    others = [k for k in section_keys(config_class, section) if k not in declared]
    if others:
        parameters.append(Parameter("kwargs", Parameter.VAR_KEYWORD, annotation="Any"))
        texts.append(f"kwargs: RLlib's settings: {', '.join(others)}.")
    # Of the nearest class that has one.
    summaries = (
        getattr(vars(base).get(section), TEXT, "") for base in config_class.__mro__
    )
    summary = next(filter(None, summaries), "")
    method.__doc__ = "\n".join([f"{summary}\n\nArgs:", *map(_ARGS.fill, texts)])
    # Not as an attribute: mypy knows none of this name.
    vars(method)["__signature__"] = inspect.Signature(
        parameters, return_annotation="Self"
    )
