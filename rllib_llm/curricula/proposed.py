"""Curriculum of proposed tasks: options that an assistant writes, of medium success."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.curricula.task_options import with_options
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task

_SHOWN = 8  # kept options that a question lists


@component(
    "curriculum",
    "proposed",
    paper="cf. WebRL, arXiv:2411.02337, and PAE, arXiv:2412.13194 (proposed tasks)",
)
class Proposed:
    """Give tasks options of medium success that an assistant proposes.

    Before sampling the assistant is asked for options of the environment; those that
    the environment refuses are counted and left out. New ones are tried first. After
    their groups were sampled, options whose success rate is in [low, high] are kept
    and used again, with a new seed; the others are dropped.

    Args:
        of: Name of the assistant in ``rollouts.assistants``, with ``per: task``.
        proposals: Number of options that it is asked for in each iteration, >= 1.
        low: Least success rate of options that are kept, in [0, high].
        high: Largest success rate of options that are kept, in [low, 1].
        prob: Probability that a task gets proposed options, in (0, 1].
        capacity: Number of options that are kept, >= 1; the oldest are dropped.
        seed: Seed of the draws, combined with the group's number.
    """

    def __init__(
        self,
        *,
        of: str,
        proposals: int = 4,
        low: float = 0.1,
        high: float = 0.9,
        prob: float = 0.5,
        capacity: int = 100,
        seed: int = 0,
    ):
        for name, value in (("proposals", proposals), ("capacity", capacity)):
            if value < 1:
                raise ValueError(f"{name}={value!r} must be >= 1. Use the default.")
        if not 0 <= low <= high <= 1:
            raise ValueError(
                f"low={low!r}, high={high!r} must be success rates with low <= high. "
                "Use e.g. 0.1 and 0.9."
            )
        if not 0 < prob <= 1:
            raise ValueError(f"prob={prob!r} must be in (0, 1]. Use e.g. 0.5.")
        self.of, self.proposals, self.low, self.high = of, proposals, low, high
        self.prob, self.capacity, self.seed = prob, capacity, seed
        self._new: deque[dict[str, Any]] = deque(maxlen=capacity)
        self._kept: dict[str, float] = {}  # success rate by options, oldest first
        self._given: dict[int, dict[str, Any]] = {}  # of groups of this iteration

    def fields(self) -> dict[str, str]:
        """Return the placeholders of a question, e.g. ``{tasks}``."""
        shown = list(self._kept.items())[-_SHOWN:]
        lines = [f"{options} solved {rate:.2f}" for options, rate in shown]
        return {"tasks": "\n".join(lines) or "none yet"}

    def receive(self, proposed: Sequence[dict[str, Any]]) -> None:
        """Queue options that the environment accepts, each once."""
        queued = {*self._kept, *map(_key, self._new)}
        for options in proposed:
            if _key(options) not in queued:
                queued.add(_key(options))
                self._new.append(options)

    def assign(self, task: Task, iteration: int) -> Task:
        """Return the task, or one with proposed options."""
        rng = np.random.default_rng([self.seed, task.group_id])
        if rng.random() >= self.prob or not (self._new or self._kept):
            return task
        if self._new:
            options = self._new.popleft()
        else:
            keys = list(self._kept)
            options = json.loads(keys[int(rng.integers(len(keys)))])
        self._given[task.group_id] = options
        return with_options(task, options)

    def observe(self, table: TurnTable) -> None:
        """Keep the options of medium success, and drop the others."""
        solved: dict[str, list[float]] = {}
        for trajectory in table.trajectories:
            options = self._given.get(trajectory.task.group_id)
            if options is not None:
                solved.setdefault(_key(options), []).append(trajectory.is_solved)
        # In the order of the groups, not of delivery.
        for key in dict.fromkeys(_key(self._given[g]) for g in sorted(self._given)):
            self._kept.pop(key, None)
            rate = float(np.mean(solved[key])) if key in solved else -1.0
            # The mean is subject to rounding.
            if self.low - 1e-9 <= rate <= self.high + 1e-9:
                self._kept[key] = rate
        for key in list(self._kept)[: -self.capacity]:
            del self._kept[key]
        self._given.clear()

    def get_state(self) -> dict[str, Any]:
        """Return the options that are kept, and those that were not tried yet."""
        return {"new": list(self._new), "kept": dict(self._kept)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of :meth:`get_state`."""
        self._new = deque(state["new"], maxlen=self.capacity)
        self._kept = {key: float(rate) for key, rate in state["kept"].items()}

    @property
    def num_kept(self) -> int:
        """Number of options that are kept."""
        return len(self._kept)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no value of an option.")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def read_options(text: str | None) -> dict[str, Any] | None:
    """Return the options in the last JSON object of a text; None if there is none.

    Options are names with values that are no objects; ``split`` is not one of them.
    """
    start = -1 if text is None else text.rfind("{")
    if text is None or start < 0:
        return None
    try:
        options, _ = _DECODER.raw_decode(text[start:])
    except (ValueError, RecursionError):
        return None
    is_usable = options and not {"split", "task_number"} & set(options)
    return options if is_usable else None


def _key(options: dict[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)
