"""Write a function; visible tests allow retries, hidden tests decide."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.code_functions.families import NUM_LEVELS, draw_task
from rllib_llm.envs.parsing import last_match, require_bool, require_choice, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.graders.unit_tests import Case, CaseReport, run_tests
from rllib_llm.sandbox import BACKENDS, shared_sandbox

_MOST_CHARS = 120  # maximum length of a value in an observation


@register_text_env("code-v0")
class CodeFunctions(TextEnv):
    """Write a function. Return 1 if it passes all hidden tests.

    After a failed visible test the model reads the failure and may try again. A
    function that passes all visible tests is rated by the hidden ones. All tests run
    in the sandbox, which the right results never enter. Tasks are split into train and
    test by the hash of their description.
    """

    max_turns = 3
    format_hint = "Use <python>def f(...): ...</python>."
    _pattern = re.compile(r"<python>((?:(?!<python>).)*?)</python>", re.DOTALL)

    def start(
        self,
        rng: np.random.Generator,
        level: int = 1,
        visible: int = 2,
        hidden: int = 6,
        partial: bool = False,
        sandbox: str = "fork_server",
    ) -> str:
        """Draw a task.

        Args:
            rng: Generator of the function and its tests.
            level: Difficulty, 1 to 3; 3 needs loops.
            visible: Number of tests in the prompt, in [1, 10].
            hidden: Number of hidden tests, in [1, 50].
            partial: Whether the reward is the share of hidden tests passed, instead of
                all or nothing.
            sandbox: Sandbox backend, "fork_server" or "monty".
        """
        require_int("level", level, 1, NUM_LEVELS)
        self.visible = require_int("visible", visible, 1, 10)
        require_int("hidden", hidden, 1, 50)
        self.partial = require_bool("partial", partial)
        self._backend = require_choice("sandbox", sandbox, BACKENDS)
        shared_sandbox(sandbox)  # fails here if the platform cannot isolate programs
        while True:
            self.task = draw_task(rng, level, visible + hidden)
            if in_split(self.task.asked, self.split):
                break
        self._last: dict[str, Any] = {}
        shown = "; ".join(
            f"{_call(case)} == {case.result!r}" for case in self.task.cases[:visible]
        )
        return (
            f"Write {self.task.head} that returns {self.task.asked}. {shown}. "
            "Answer as <python>def f(...): ...</python>."
        )

    def parse(self, completion: str) -> str | None:
        """Return the last program, or None without a non-empty one."""
        self._last = {}
        match = last_match(self._pattern, completion)
        text = match.group(1).strip("\n") if match else ""
        return text if text.strip() else None

    def reply(self, action: str) -> TurnResult:
        """Run all tests; report a failed visible one, else rate by the hidden ones."""
        cases = self.task.cases
        reports = run_tests(action, "f", cases, shared_sandbox(self._backend))
        shown = list(zip(cases, reports, strict=True))[: self.visible]
        failed = next(((c, r) for c, r in shown if not r.passed), None)
        self._last = {"tool": "python", "tool_error": failed is not None}
        if failed is not None:
            return TurnResult(f"{_failure_text(*failed)} Try again.", success=False)
        hidden = [report.passed for report in reports[self.visible :]]
        share, is_right = sum(hidden) / len(hidden), all(hidden)
        return TurnResult(
            "All tests passed." if is_right else "Hidden tests failed.",
            share if self.partial else float(is_right),
            terminated=True,
            success=is_right,
            metrics={"hidden_tests_passed": share},
        )

    def more_info(self) -> dict[str, Any]:
        """Return whether the tests ran and failed in this turn."""
        return {"tool": None, "tool_error": False, **self._last}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the solution."""
        return f"<python>{self.task.solution}</python>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return the solution with other parameters, or the identity function."""
        if rng.random() < 0.5:
            return f"<python>{self.task.mistake}</python>"
        argument = self.task.head[2:-1]
        return f"<python>def {self.task.head}:\n    return {argument}</python>"


def _call(case: Case) -> str:
    return f"f({', '.join(map(repr, case.arguments))})"


def _failure_text(case: Case, report: CaseReport) -> str:
    """Return the failure of a visible test as text."""
    if report.error:
        return f"{_call(case)} failed: {report.error[:_MOST_CHARS].rstrip('.')}."
    returned = repr(report.returned)
    if len(returned) > _MOST_CHARS:
        returned = returned[:_MOST_CHARS] + "..."
    return f"{_call(case)} returned {returned}, not {case.result!r}."
