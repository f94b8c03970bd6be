"""Write a function: visible tests may be tried again, hidden ones judge."""

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

_MOST_CHARS = 120  # of a value that is shown


@register_text_env("code-v0")
class CodeFunctions(TextEnv):
    """Write a function. Return 1 if it passes all hidden tests.

    A function that fails a visible test is told so, and the model may try again. One
    that passes them is judged by the hidden ones. All run in the sandbox, into which no
    right result ever comes. Tasks are split into train and test by the hash of what is
    asked.
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
        """Draw a function that is asked for.

        Args:
            rng: Decides the function and its tests.
            level: Difficulty, 1 to 3; 3 needs loops.
            visible: Tests that are shown, in [1, 10].
            hidden: Tests that are not, in [1, 50].
            partial: Pay the share of hidden tests passed, instead of all or nothing.
            sandbox: Where functions run, "fork_server" or "monty".
        """
        require_int("level", level, 1, NUM_LEVELS)
        self.visible = require_int("visible", visible, 1, 10)
        require_int("hidden", hidden, 1, 50)
        self.partial = require_bool("partial", partial)
        self._backend = require_choice("sandbox", sandbox, BACKENDS)
        shared_sandbox(sandbox)  # refuses platforms that cannot isolate
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
        """Read the last program; an empty one is none."""
        self._last = {}
        match = last_match(self._pattern, completion)
        text = match.group(1).strip("\n") if match else ""
        return text if text.strip() else None

    def reply(self, action: str) -> TurnResult:
        """Run all tests; name a visible one that failed, else judge by the others."""
        cases = self.task.cases
        reports = run_tests(action, "f", cases, shared_sandbox(self._backend))
        shown = list(zip(cases, reports, strict=True))[: self.visible]
        failed = next(((c, r) for c, r in shown if not r.passed), None)
        self._last = {"tool": "python", "tool_error": failed is not None}
        if failed is not None:
            return TurnResult(f"{_told(*failed)} Try again.", success=False)
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
        """Return what the tests said in this turn."""
        return {"tool": None, "tool_error": False, **self._last}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Write the solution."""
        return f"<python>{self.task.solution}</python>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Write the solution with other parameters, or return the argument."""
        if rng.random() < 0.5:
            return f"<python>{self.task.mistake}</python>"
        argument = self.task.head[2:-1]
        return f"<python>def {self.task.head}:\n    return {argument}</python>"


def _call(case: Case) -> str:
    return f"f({', '.join(map(repr, case.arguments))})"


def _told(case: Case, report: CaseReport) -> str:
    """Say how a visible test failed."""
    if report.error:
        return f"{_call(case)} failed: {report.error[:_MOST_CHARS].rstrip('.')}."
    returned = repr(report.returned)
    if len(returned) > _MOST_CHARS:
        returned = returned[:_MOST_CHARS] + "..."
    return f"{_call(case)} returned {returned}, not {case.result!r}."
