"""Tasks of programs: from a function, a file or a list."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rllib_llm.envs.dataset.row_files import is_data_file, local_files, numbered_lines
from rllib_llm.errors import ConfigError
from rllib_llm.imports import import_object

Source = str | list[Any] | None


class Tasks:
    """Tasks of one split.

    Args:
        source: ``"module:function"``, called as ``function(seed, split)``; a data file
            with one task per row; a list; None for ``{"seed": ..., "split": ...}``.
        split: ``"train"`` or ``"test"``.
        option: Name of the option that gives the source, for messages.

    Raises:
        ConfigError: If the source does not exist or has no task.
    """

    def __init__(self, source: Source, split: str, option: str = "tasks") -> None:
        self._split = split
        self._function: Callable[[int, str], Any] | None = None
        self._rows: Sequence[Any] = ()
        if source is None:
            self._function = lambda seed, split: {"seed": seed, "split": split}
        elif isinstance(source, str) and not is_data_file(source):
            self._function = import_object(source, f"env_config.{option}")
        else:
            self._rows = _rows(source) if isinstance(source, str) else source
            if not self._rows:
                raise ConfigError(f"{option}={source!r} has no task. Add one.")

    def task(self, seed: int, number: int | None) -> Any:
        """Return a task.

        Args:
            seed: Seed of the episode.
            number: Number of the task in the run's sequence; None draws a listed task
                by the seed.
        """
        if self._function is not None:
            return self._function(seed, self._split)
        if number is None:
            number = int(np.random.default_rng(seed).integers(len(self._rows)))
        return self._rows[number % len(self._rows)]


def tasks_of(split: str, tasks: Source, test_tasks: Source) -> Tasks:
    """Return the tasks of a split.

    Args:
        split: ``"train"`` or ``"test"``.
        tasks: Source of the training tasks; a function also gives held-out ones.
        test_tasks: Source of the held-out tasks; None: that of ``tasks``.

    Raises:
        ConfigError: If there are no held-out tasks, or a source is wrong.
    """
    if split != "test":
        return Tasks(tasks, split)
    if test_tasks is not None:
        return Tasks(test_tasks, split, "test_tasks")
    if tasks is not None and (not isinstance(tasks, str) or is_data_file(tasks)):
        raise ConfigError(
            "tasks is a file or a list without held-out tasks, which evaluation needs. "
            "Set test_tasks in env_config to other ones, or to those of tasks to "
            "evaluate on the training tasks."
        )
    return Tasks(tasks, split)


@functools.lru_cache(maxsize=8)
def _rows(path: str) -> tuple[Any, ...]:
    rows = []
    for file in local_files([path]):
        for number, _, line in numbered_lines(file):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ConfigError(
                    f"{file}, line {number} is not JSON: {error}. Write one task per "
                    "line."
                ) from error
    return tuple(rows)
