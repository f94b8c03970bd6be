"""A task with one tool whose results the agent writes itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.parsing import require_choice
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.envs.tool_or_answer import ToolOrAnswer
from rllib_llm.envs.wrapped_tasks import task_class
from rllib_llm.errors import ConfigError

REQUEST = "Write the result."
MAX_CHARS = 1000


@register_text_env("written_results-v0")
class WrittenResults(TextEnv):
    """A task whose tool the agent replaces. Return the task's reward of the answer.

    After a use of the tool the agent is asked for the result, and its next text is the
    result. With ``tool: real`` the task's tool answers instead: train with the first,
    evaluate with the second. Cf. SSRL (Fan et al. 2025, arXiv:2508.10874), where a
    model searches its own knowledge within one text.
    """

    max_turns = 8  # the agent's own results count

    def __init__(self, env_config: dict[str, Any] | None = None):
        super().__init__(env_config)
        self.system_prompt = _task_class(self.options()["task"]).system_prompt

    def start(
        self,
        rng: np.random.Generator,
        task: str = "search_facts-v0",
        task_config: Mapping[str, Any] | None = None,
        tool: str = "written",
    ) -> str:
        """Start the task.

        Args:
            rng: Generator of the instance.
            task: Name of a registered environment whose turns use one tool or answer.
            task_config: Options of the task.
            tool: "written": the agent writes the results; "real": the task's tool.
        """
        self.is_written = require_choice("tool", tool, ("written", "real")) == "written"
        self._task_config = dict(task_config or {})
        self.task = _task_class(task)(self._task_config)
        self.format_hint = self.task.format_hint
        self.calls: list[str] = []  # texts of own uses of the tool
        self.is_asked = False
        self.num_uses = 0
        self._info: dict[str, Any] = {}
        seed = int(rng.integers(2**31))
        text, _ = self.task.reset(seed=seed, options={"split": self.split})
        self._first = self.task.snapshot()
        return text

    def parse(self, completion: str) -> tuple[str, str] | None:
        """Return ``("result", text)``, ``("use", text)`` or ``("task", text)``.

        None if a result is empty, or if the task reads no action from the text.
        """
        # Also of a turn without an action.
        self._info = {"written_result": self.is_asked}
        if self.is_asked:
            result = completion.strip()[:MAX_CHARS].strip()
            return ("result", result) if result else None
        action = self.task.parse(completion)
        if action is None:
            return None
        is_use = self.is_written and action[0] != "answer"
        return ("use" if is_use else "task"), completion

    def reply(self, action: tuple[str, str]) -> TurnResult:
        """Ask for a result, show the agent's own one, or give the text to the task."""
        kind, text = action
        if kind == "use":
            self._info["tool"] = self.task.tag
            self.calls.append(text)
            self.is_asked = True
            self.num_uses += 1
            return TurnResult(REQUEST, metrics=self._metrics())
        if kind == "result":
            self.is_asked = False
            # In the place where the real tool's result stands.
            return TurnResult(text, metrics=self._metrics())
        return self._step(text)

    def more_info(self) -> dict[str, Any]:
        """Return the task's information; ``written_result`` for a result's turn."""
        # Right answers, too, of an episode that ends before the task has a turn.
        info = {"tool": None, "tool_error": False, **self.task.more_info()}
        return {**info, "written_result": False, **self._info}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Write what the real tool would; else act as the task's expert."""
        task, result = self._played()
        return result if self.is_asked else task.expert_action(rng)

    def random_action(self, rng: np.random.Generator) -> str:
        """Write the result of a random use; else act at random in the task."""
        task, _ = self._played()
        if not self.is_asked:
            return task.random_action(rng)
        while True:
            text = task.random_action(rng)
            action = task.parse(text)
            if action is not None and action[0] != "answer":
                return _result(task, text)

    def admissible_actions(self) -> list[str] | None:
        """Return the task's actions where its tool is real; else there is no list."""
        return None if self.is_written else self.task.admissible_actions()

    def _invalid(self) -> TurnResult:
        result = super()._invalid()
        if self.is_asked:
            return dataclasses.replace(result, observation=REQUEST)
        return result

    def _step(self, text: str) -> TurnResult:
        self.num_uses += self.task.tag != "answer"
        shown, reward, terminated, truncated, info = self.task.step(text)
        self._info |= {k: v for k, v in info.items() if k != "admissible_actions"}
        metrics = {**info["metrics"], **self._metrics()}
        return TurnResult(
            shown, reward, terminated, truncated, info["success"], metrics=metrics
        )

    def _metrics(self) -> dict[str, float]:
        return {"tool_uses": float(self.num_uses)}

    def _played(self) -> tuple[ToolOrAnswer, str]:
        """Return a copy of the task after own uses of the tool, and the last result.

        Only scripted policies need it: the agent's episode never uses the tool.
        """
        if not self.is_written:
            return self.task, ""
        task = type(self.task)(self._task_config)
        task.restore(self._first)
        result = ""
        for text in self.calls:
            result = _result(task, text)
        return task, result


def _result(task: ToolOrAnswer, text: str) -> str:
    """Use the tool of a copy of the task; return what it shows."""
    return task.step(text)[0][:MAX_CHARS].strip()


def _task_class(name: str) -> type[ToolOrAnswer]:
    problem = (
        "has no turns that use one tool or answer. Choose an environment that derives "
        "from ToolOrAnswer, e.g. 'search_facts-v0'."
    )
    task = task_class(name, ToolOrAnswer, problem)
    if task.shows_pictures:
        raise ConfigError(
            f"task={name!r} shows pictures, and an agent writes text. Choose a task "
            "whose tool returns text, e.g. 'search_facts-v0'."
        )
    return task
