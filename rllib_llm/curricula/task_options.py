"""Task options of curricula."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_llm.data.types import Task

Options = Mapping[str, Any]


def check_options(name: str, given: Any) -> list[dict[str, Any]]:
    """Return the options of a level or an arm as a list of mappings.

    Raises:
        ValueError: If ``given`` is neither a mapping nor a list of mappings.
    """
    several = [given] if isinstance(given, Mapping) else given
    is_list = isinstance(several, Sequence) and not isinstance(several, str)
    if not is_list or not several or not all(isinstance(o, Mapping) for o in several):
        raise ValueError(
            f"{name}={given!r} must be options of the environment, or a list of them. "
            "Use e.g. {size: 3} or [{size: 3}, {size: 4}]."
        )
    return [dict(options) for options in several]


def with_options(task: Task, options: Options) -> Task:
    """Return the task with these options added to its own (e.g. its split)."""
    return dataclasses.replace(task, options={**task.options, **options})
