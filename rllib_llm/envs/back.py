"""Any single-agent task with a tool by which the agent undoes its own turns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import require_bool, require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.envs.tool_env import ToolEnv
from rllib_llm.envs.wrapped_tasks import task_class
from rllib_llm.errors import ConfigError
from rllib_llm.tools.formats import Call
from rllib_llm.tools.tool_set import Result

_BACK = re.compile(r"back(?:[ \t]+(\d{1,3}))?[.!]?", re.IGNORECASE)
_STOP = "stop"
_THOUGHTS = " Thoughts may stand on the lines before it."
_MANY = 10**6
_RANDOM_BACK = 0.2  # share of random turns that undo a turn


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of the task that counts.

    Attributes:
        state: Snapshot of the task before it.
        text: Observation that it answered, the results of tools as plain text.
        reward: Its reward.
    """

    state: bytes
    text: str
    reward: float


def back(turns: int = 1) -> str:
    """Undo your last turns; it must be the only call of its turn.

    Args:
        turns: Number of turns to undo.
    """
    # The environment reads the call itself where turns can be undone.
    raise ValueError(
        f"back({turns}) is not possible: it must be the only call of a turn, and "
        "there must be uses left"
    )


@register_text_env("back-v0")
class Back(TextEnv):
    """A task whose turns the agent can undo. Return that of the turns that count.

    ``back`` returns to the observation before the agent's last turn, ``back K`` to that
    before its last K turns. The conversation goes on and keeps the turns that were
    undone; the reward of ``back`` cancels theirs. An end that the task counts as a
    failure can be undone as well: the agent reads it, and the episode ends if its next
    turn is not ``back``. Where a task has tools, ``back`` is one of them.
    """

    max_turns = 24  # undone turns and uses of the tool count

    def __init__(self, env_config: dict[str, Any] | None = None):
        super().__init__(env_config)
        self.system_prompt = _task_class(self.options()["task"]).system_prompt

    def start(
        self,
        rng: np.random.Generator,
        task: str = "frozen_lake-v0",
        task_config: Mapping[str, Any] | None = None,
        uses: int = 3,
        cost: float = 0.0,
        thoughts: bool = False,
    ) -> str:
        """Start the task.

        Args:
            rng: Generator of the instance.
            task: Name of a registered single-agent environment with snapshots.
            task_config: Options of the task.
            uses: Number of times that the agent may undo turns; 0: the task alone.
            cost: Taken off the reward at each use, >= 0.
            thoughts: Whether ``back`` may stand alone on the last line of a longer
                text; not for tasks with tools, whose calls may follow any text.
        """
        self.uses_left = require_int("uses", uses, 0, _MANY)
        self.times_back = 0
        self.cost = require_float("cost", cost, 0.0, _MANY)
        self.thoughts = require_bool("thoughts", thoughts)
        self.task = _task_class(task)(dict(task_config or {}))
        self.format_hint = self.task.format_hint
        self.earlier: list[_Turn] = []
        self._end: TurnResult | None = None
        self._task_info: dict[str, Any] = {}
        self._back_info: dict[str, Any] | None = None
        if isinstance(self.task, ToolEnv):
            _check_thoughts(task, thoughts)
            self.task.more_tools = [back] if uses else []
        seed = int(rng.integers(2**31))
        self._text, info = self.task.reset(seed=seed, options={"split": self.split})
        self._tools = {k: info[k] for k in ("tools", "tool_format") if k in info}
        return f"{self._text}{self._instruction(uses)}" if uses else self._text

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; info holds the ``tools`` of a task that has some."""
        prompt, info = super().reset(seed=seed, options=options)
        return prompt, info | self._tools

    def parse(self, completion: str) -> tuple[str, Any] | None:
        """Return ``("back", K)`` or ``("task", text)``; None if the task reads none."""
        count = self._count(completion) if self.uses_left else None
        if count is not None:
            return "back", count
        if self._end is not None:
            return _STOP, None
        return None if self.task.parse(completion) is None else ("task", completion)

    def reply(self, action: tuple[str, Any]) -> TurnResult:
        """Undo turns, end the episode, or give the text to the task."""
        kind, content = action
        self._back_info = None
        if kind == "back":
            return self._as_result(self._go_back(content))
        if self._end is not None:
            return dataclasses.replace(self._end, reward=0.0)
        return self._step(content)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Undo a failed end; else act as the task's expert."""
        if self._end is not None:
            return self._undo_text
        return self.task.expert_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random action of the task, or ``back``."""
        if self._end is not None:
            return (self._undo_text, _STOP)[int(rng.integers(2))]
        if self.uses_left and self.earlier and rng.random() < _RANDOM_BACK:
            return self._undo_text
        return self.task.random_action(rng)

    def admissible_actions(self) -> list[str] | None:
        """Return the task's actions, and ``back`` if there is a turn to undo."""
        if self._end is not None:
            return [self._undo_text, _STOP]
        actions = self.task.admissible_actions()
        if actions is None or not (self.uses_left and self.earlier):
            return actions
        return [*actions, self._undo_text]

    def more_info(self) -> dict[str, Any]:
        """Return the task's information on its last turn; ``tool`` after ``back``."""
        return self._task_info if self._back_info is None else self._back_info

    @property
    def _undo_text(self) -> str:
        """Text that undoes the last turn."""
        if isinstance(self.task, ToolEnv):
            return self.task.write_call("back")
        return undo_text(1)

    def _instruction(self, uses: int) -> str:
        if isinstance(self.task, ToolEnv):
            return f"\nCall back to undo your last turns, {_times(uses)} at most."
        return (
            f"\nSay back to undo your last turn, back 2 for two turns, {_times(uses)} "
            f"at most.{_THOUGHTS if self.thoughts else ''}"
        )

    def _count(self, completion: str) -> int | None:
        """Return the number of turns that a text undoes; None if it is the task's."""
        if isinstance(self.task, ToolEnv):
            calls = self.task.tool_set.parse(completion)
            if len(calls) != 1 or calls[0].name != "back" or calls[0].problem:
                return None
            return int(calls[0].arguments.get("turns", 1))
        word = completion.strip()
        if self.thoughts:
            word = word.rpartition("\n")[2].strip()
        match = _BACK.fullmatch(word)
        return int(match[1] or 1) if match else None

    def _as_result(self, undone: TurnResult) -> TurnResult:
        """Return the result of ``back``, for a task with tools as that of a tool."""
        self._back_info = {"tool": "back"}
        if not isinstance(self.task, ToolEnv):
            return undone
        text = undone.observation
        if self._tools:  # a chat template may render it in its own role
            self._back_info["tool_results"] = [{"name": "back", "content": text}]
        shown = self.task.tool_set.results_text([Result(Call("back"), text)])
        return dataclasses.replace(undone, observation=shown)

    def _step(self, text: str) -> TurnResult:
        state, answered = self.task.snapshot(), self._text
        shown, reward, terminated, truncated, info = self.task.step(text)
        self.earlier.append(_Turn(state, answered, reward))
        self._task_info = {k: v for k, v in info.items() if k != "admissible_actions"}
        results = info.get("tool_results") or []
        self._text = "\n".join(r["content"] for r in results) if results else shown
        result = TurnResult(
            shown,
            reward,
            terminated,
            truncated,
            info["success"],
            metrics={**info["metrics"], "times_back": float(self.times_back)},
        )
        if (terminated or truncated) and info["success"] is False and self.uses_left:
            self._end = result
            return self._undoable(result, results)
        return result

    def _undoable(
        self, result: TurnResult, results: list[dict[str, Any]]
    ) -> TurnResult:
        """Return a failed end that can be undone, and say so to the agent."""
        choice = f" Say back to undo it, or {_STOP}."
        if isinstance(self.task, ToolEnv):
            choice = f" Call back to undo it, or say {_STOP}."
        if results:
            last = {**results[-1], "content": f"{results[-1]['content']}{choice}"}
            self._task_info["tool_results"] = [*results[:-1], last]
        return TurnResult(
            f"{result.observation}{choice}", result.reward, metrics=result.metrics
        )

    def _go_back(self, count: int) -> TurnResult:
        if not 1 <= count <= len(self.earlier):
            return TurnResult(
                f"There are {len(self.earlier)} turns to undo, not {count}.",
                metrics={"times_back": float(self.times_back)},
            )
        undone = self.earlier[-count:]
        del self.earlier[-count:]
        self.uses_left -= 1
        self.times_back += 1
        self.task.restore(undone[0].state)
        self._end, self._text = None, undone[0].text
        return TurnResult(
            f"Undone, {_times(self.uses_left)} left.\n{self._text}",
            reward=-sum(turn.reward for turn in undone) - self.cost,
            metrics={"times_back": float(self.times_back)},
        )


def undo_text(count: int) -> str:
    """Return the text that undoes so many turns."""
    return "back" if count == 1 else f"back {count}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _check_thoughts(task: str, thoughts: bool) -> None:
    if thoughts:
        raise ConfigError(
            f"thoughts=true has no effect on task={task!r}, whose calls of tools may "
            "follow any text. Leave thoughts out."
        )


def _task_class(name: str) -> type[TextEnv]:
    problem = (
        "is not a single-agent TextEnv. Choose another one, e.g. 'frozen_lake-v0'."
    )
    return task_class(name, TextEnv, problem, refused=(Back,))
