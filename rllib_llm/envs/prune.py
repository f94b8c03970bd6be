"""Any single-agent task whose agent deletes observations from its own context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.data.edits import DELETED, MARKER
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.envs.tool_env import ToolEnv
from rllib_llm.envs.wrapped_tasks import task_class

# Every repetition is bounded: completions may be long.
_PRUNE = re.compile(
    r"prune[ \t]{1,4}(\d{1,3}(?:[ \t,]{1,4}\d{1,3}){0,20})[ \t]{0,4}:[ \t]{0,4}\S",
    re.IGNORECASE,
)
_MANY = 10**6
_RANDOM_PRUNE = 0.15  # share of random turns that delete an observation
_LONG = 80  # characters of an observation that experts delete


@register_text_env("prune-v0")
class Prune(TextEnv):
    """A task whose observations are numbered, and which the agent can delete.

    ``prune 2 3: summary`` deletes observations 2 and 3 from the conversation; the reply
    with its summary stays. The context may hold ``room`` characters: an episode whose
    conversation is longer is lost. Return that of the task.
    """

    max_turns = 12  # turns that delete count

    def __init__(self, env_config: dict[str, Any] | None = None):
        super().__init__(env_config)
        self.system_prompt = _task_class(self.options()["task"]).system_prompt

    def start(
        self,
        rng: np.random.Generator,
        task: str = "search_facts-v0",
        task_config: Mapping[str, Any] | None = None,
        room: int | None = None,
        prune: bool = True,
        cost: float = 0.0,
    ) -> str:
        """Start the task.

        Args:
            rng: Generator of the instance.
            task: Name of a registered single-agent environment with snapshots.
            task_config: Options of the task.
            room: Most characters of the conversation; None: no bound.
            prune: Whether observations can be deleted.
            cost: Taken off the reward of a turn that deletes, >= 0.
        """
        self.room = None if room is None else require_int("room", room, 1, _MANY)
        self.can_prune = bool(prune)
        self.cost = require_float("cost", cost, 0.0, _MANY)
        self.task = _task_class(task)(dict(task_config or {}))
        self.format_hint = self.task.format_hint
        self.shown: list[str | None] = []  # observations; None: deleted
        self.replied = 0  # characters of the agent's replies
        self.deleted: list[int] = []  # by the last turn
        self._task_info: dict[str, Any] = {}
        seed = int(rng.integers(2**31))
        text, _ = self.task.reset(seed=seed, options={"split": self.split})
        if not self.can_prune:
            return self._show(text)
        room_text = "" if room is None else f" The context holds {room} characters."
        return self._show(
            f"{text}\nSay prune 2: summary to delete observation 2.{room_text}"
        )

    def parse(self, completion: str) -> tuple[str, Any] | None:
        """Return ``("prune", (numbers, text))`` or ``("task", text)``."""
        match = _PRUNE.match(completion.strip()) if self.can_prune else None
        if match:
            numbers = [int(n) for n in re.findall(r"\d+", match[1])]
            return "prune", (sorted(set(numbers)), completion)
        return None if self.task.parse(completion) is None else ("task", completion)

    def reply(self, action: tuple[str, Any]) -> TurnResult:
        """Delete observations, or give the text to the task."""
        kind, content = action
        self.deleted = []
        if kind == "prune":
            self._task_info = {}
            return self._delete(*content)
        self.replied += len(content)
        text, reward, terminated, truncated, info = self.task.step(content)
        self._task_info = {k: v for k, v in info.items() if k != "admissible_actions"}
        result = TurnResult(
            self._show(text),
            reward,
            terminated,
            truncated,
            info["success"],
            metrics={**info["metrics"], **self._metrics()},
        )
        return result if terminated or truncated else self._in_room(result)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Delete a long observation before one like it may not fit.

        Its first line is kept.
        """
        long = [n for n in self._deletable() if len(self.shown[n - 1] or "") > _LONG]
        largest = max((len(self.shown[n - 1] or "") for n in long), default=0)
        # Besides the observation the agent's own text has to fit.
        needed = self.length + largest + _LONG
        if self.room is not None and long and needed > self.room:
            text = (self.shown[long[0] - 1] or "").partition("] ")[2]
            return f"prune {long[0]}: {text.partition(chr(10))[0][:_LONG]}"
        return self.task.expert_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random action of the task, or delete an observation."""
        old = self._deletable()
        if old and rng.random() < _RANDOM_PRUNE:
            return f"prune {rng.choice(old)}: read"
        return self.task.random_action(rng)

    def more_info(self) -> dict[str, Any]:
        """Return the task's information, and the observations that are deleted."""
        if not self.deleted:
            return self._task_info
        return {"tool": "prune", DELETED: list(self.deleted)}

    @property
    def length(self) -> int:
        """Characters of the conversation."""
        texts = [MARKER if text is None else text for text in self.shown]
        return self.replied + sum(map(len, texts))

    def _deletable(self) -> list[int]:
        """Return the observations after the first that are not deleted."""
        if not self.can_prune:
            return []
        shown = enumerate(self.shown, start=1)
        return [n for n, text in shown if n > 1 and text is not None]

    def _delete(self, numbers: list[int], text: str) -> TurnResult:
        self.replied += len(text)
        wrong = [n for n in numbers if n not in self._deletable()]
        if wrong:
            listed = ", ".join(map(str, wrong))
            answer = f"There is nothing to delete at {listed}."
        else:
            answer = f"Deleted {', '.join(map(str, numbers))}."
            self.deleted = numbers
            for number in numbers:
                self.shown[number - 1] = None
        result = TurnResult(
            self._show(answer), reward=-self.cost, metrics=self._metrics()
        )
        return self._in_room(result)

    def _show(self, text: str) -> str:
        self.shown.append(f"[{len(self.shown) + 1}] {text}")
        return self.shown[-1] or ""

    def _in_room(self, result: TurnResult) -> TurnResult:
        """Return the result, or the end of the episode if the room is too small."""
        if self.room is None or self.length <= self.room:
            return result
        return TurnResult(
            f"{result.observation}\nThe context is full.",
            result.reward,
            terminated=True,
            success=False,
            metrics=result.metrics,
        )

    def _metrics(self) -> dict[str, float]:
        gone = sum(text is None for text in self.shown)
        return {"deleted": float(gone), "context_chars": float(self.length)}


def _task_class(name: str) -> type[TextEnv]:
    problem = (
        "is not a single-agent TextEnv that reads plain text. An environment with "
        "schemas of tools would need `prune` among them. Choose another one, e.g. "
        "'search_facts-v0'."
    )
    return task_class(name, TextEnv, problem, refused=(ToolEnv, Prune))
