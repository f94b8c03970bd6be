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
        text: Observation that it answered.
        reward: Its reward.
    """

    state: bytes
    text: str
    reward: float


@register_text_env("back-v0")
class Back(TextEnv):
    """A task whose turns the agent can undo. Return that of the turns that count.

    ``back`` returns to the observation before the agent's last turn, ``back K`` to that
    before its last K turns. The conversation goes on and keeps the turns that were
    undone; the reward of ``back`` cancels theirs. An end that the task counts as a
    failure can be undone as well: the agent reads it, and the episode ends if its next
    turn is not ``back``.
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
                text.
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
        self._used_back = False
        seed = int(rng.integers(2**31))
        self._text, _ = self.task.reset(seed=seed, options={"split": self.split})
        if not uses:
            return self._text
        return (
            f"{self._text}\nSay back to undo your last turn, back 2 for two turns, "
            f"{_times(uses)} at most."
            f"{_THOUGHTS if thoughts else ''}"
        )

    def parse(self, completion: str) -> tuple[str, Any] | None:
        """Return ``("back", K)`` or ``("task", text)``; None if the task reads none."""
        word = completion.strip()
        if self.thoughts:
            word = word.rpartition("\n")[2].strip()
        match = _BACK.fullmatch(word)
        if match and self.uses_left:
            return "back", int(match[1] or 1)
        if self._end is not None:
            return _STOP, None
        return None if self.task.parse(completion) is None else ("task", completion)

    def reply(self, action: tuple[str, Any]) -> TurnResult:
        """Undo turns, end the episode, or give the text to the task."""
        kind, content = action
        self._used_back = kind == "back"
        if kind == "back":
            return self._go_back(content)
        if self._end is not None:
            return dataclasses.replace(self._end, reward=0.0)
        return self._step(content)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Undo a failed end; else act as the task's expert."""
        return "back" if self._end is not None else self.task.expert_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random action of the task, or ``back``."""
        if self._end is not None:
            return ("back", _STOP)[int(rng.integers(2))]
        if self.uses_left and self.earlier and rng.random() < _RANDOM_BACK:
            return "back"
        return self.task.random_action(rng)

    def admissible_actions(self) -> list[str] | None:
        """Return the task's actions, and ``back`` if there is a turn to undo."""
        if self._end is not None:
            return ["back", _STOP]
        actions = self.task.admissible_actions()
        if actions is None or not (self.uses_left and self.earlier):
            return actions
        return [*actions, "back"]

    def more_info(self) -> dict[str, Any]:
        """Return the task's information on its last turn; ``tool`` after ``back``."""
        return {"tool": "back"} if self._used_back else self._task_info

    def _step(self, text: str) -> TurnResult:
        state, answered = self.task.snapshot(), self._text
        self._text, reward, terminated, truncated, info = self.task.step(text)
        self.earlier.append(_Turn(state, answered, reward))
        self._task_info = {k: v for k, v in info.items() if k != "admissible_actions"}
        result = TurnResult(
            self._text,
            reward,
            terminated,
            truncated,
            info["success"],
            metrics={**info["metrics"], "times_back": float(self.times_back)},
        )
        if (terminated or truncated) and info["success"] is False and self.uses_left:
            self._end = result
            return TurnResult(
                f"{self._text} Say back to undo it, or {_STOP}.",
                reward,
                metrics=result.metrics,
            )
        return result

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


def _task_class(name: str) -> type[TextEnv]:
    problem = (
        "is not a single-agent TextEnv that reads plain text. An environment with "
        "schemas of tools would need `back` among them. Choose another one, e.g. "
        "'frozen_lake-v0'."
    )
    return task_class(name, TextEnv, problem, refused=(ToolEnv, Back))
