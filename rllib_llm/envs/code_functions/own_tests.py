"""Write a function, and then a test of it, which may be wrong."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.code_functions.families import NUM_LEVELS, draw_task
from rllib_llm.envs.parsing import (
    last_match,
    require_choice,
    require_float,
    require_int,
)
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.graders.json_text import is_too_deep
from rllib_llm.graders.unit_tests import Case, run_tests
from rllib_llm.sandbox import BACKENDS, shared_sandbox

_MOST_CHARS = 300  # of a test
# Python warns of unknown escapes and, outside of texts, of letters after a number.
_TEXTS = re.compile(r"'[^']*'|\"[^\"]*\"")
_WARNED = re.compile(r"\d(?![eE][-+]?\d)[A-Za-z_]")
_FUNCTION = "<python>def f(...): ...</python>"


@register_text_env("function_and_test-v0")
class FunctionAndTest(TextEnv):
    """Write a function, then a test of it. Each is worth 1/2 if right.

    No test is shown. A group of a task holds as many functions as tests, which the
    filter ``evolved`` runs on each other. Success is the function's. With ``history:
    latest`` the test is written without sight of the function.
    """

    max_turns = 4
    format_hint = f"Use {_FUNCTION} or <test>f(...) == ...</test>."
    _patterns = tuple(
        re.compile(rf"<{tag}>((?:(?!<{tag}>).)*?)</{tag}>", re.DOTALL)
        for tag in ("python", "test")
    )

    def start(
        self,
        rng: np.random.Generator,
        level: int = 1,
        hidden: int = 6,
        checked: float = 0.25,
        sandbox: str = "fork_server",
    ) -> str:
        """Draw a task.

        Args:
            rng: Generator of the function and its tests.
            level: Difficulty, 1 to 3; 3 needs loops.
            hidden: Number of right tests, in [1, 50].
            checked: Share of tasks whose right tests a method may read, in [0, 1]: the
                info has their outcome.
            sandbox: Sandbox backend, "fork_server" or "monty".
        """
        require_int("level", level, 1, NUM_LEVELS)
        require_int("hidden", hidden, 1, 50)
        require_float("checked", checked, 0, 1)
        self._backend = require_choice("sandbox", sandbox, BACKENDS)
        shared_sandbox(sandbox)  # fails here if the platform cannot isolate programs
        while True:
            self.task = draw_task(rng, level, hidden)
            if in_split(self.task.asked, self.split):
                break
        self.is_checked = bool(rng.random() < checked)
        self.is_right: bool | None = None  # None before the function
        self._last: dict[str, Any] = {}
        return self._asked(f"Write {self._task_text}. Answer as {_FUNCTION}.")

    @property
    def _task_text(self) -> str:
        return f"{self.task.head} that returns {self.task.asked}"

    def _asked(self, text: str) -> str:
        # After an invalid turn the same is asked again: with ``history: latest`` the
        # model sees nothing else.
        self.format_hint = text
        return text

    def parse(self, completion: str) -> str | Case | None:
        """Return the last program or, in the second part, the last test."""
        self._last = {}
        match = last_match(self._patterns[self.is_right is not None], completion)
        text = match.group(1).strip("\n") if match else ""
        if self.is_right is not None:
            return read_test(text)
        return text if text.strip() else None

    def reply(self, action: str | Case) -> TurnResult:
        """Run the function on the right tests, or compare the test with the truth."""
        if isinstance(action, Case):
            return self._rate_test(action)
        sandbox = shared_sandbox(self._backend)
        reports = run_tests(action, "f", self.task.cases, sandbox)
        self.is_right = all(report.passed for report in reports)
        self._last = {"program": action}
        if self.is_checked:
            self._last["checked"] = self.is_right
        return TurnResult(
            self._asked(
                f"Write a test of {self._task_text}. Answer as "
                "<test>f(...) == ...</test>."
            ),
            reward=0.5 * self.is_right,
            success=self.is_right,
        )

    def _rate_test(self, test: Case) -> TurnResult:
        self._last = {"test": [list(test.arguments), test.result]}
        # In the sandbox, since the model chose the arguments: they may be huge.
        sandbox = shared_sandbox(self._backend)
        is_right = run_tests(self.task.solution, "f", [test], sandbox)[0].passed
        return TurnResult(
            "Done.",
            0.5 * is_right,
            terminated=True,
            metrics={"test_right": float(is_right)},
        )

    def more_info(self) -> dict[str, Any]:
        """Return the program or test of the turn, and the outcome of checked tests."""
        return {"program": None, "test": None, "checked": None, **self._last}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the solution, or a right test."""
        if self.is_right is None:
            return f"<python>{self.task.solution}</python>"
        argument = self.task.small_argument(rng)
        return _test_text(argument, self.task.result(argument))

    def random_action(self, rng: np.random.Generator) -> str:
        """Return the solution with other parameters, or a test of that solution."""
        if self.is_right is None:
            return f"<python>{self.task.mistake}</python>"
        argument = self.task.small_argument(rng)
        return _test_text(argument, self.task.result(argument, self.task.others))


def read_test(text: str) -> Case | None:
    """Return a test written as ``f(ARGUMENTS) == RESULT``; None if it is none.

    Arguments and the result are literals that JSON can hold.
    """
    is_odd = "\\" in text or _WARNED.search(_TEXTS.sub("''", text))
    if len(text) > _MOST_CHARS or is_odd:
        return None
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not (isinstance(node, ast.Compare) and isinstance(node.left, ast.Call)):
            return None
        call, ops = node.left, [type(op) for op in node.ops]
        is_f = isinstance(call.func, ast.Name) and call.func.id == "f"
        if not is_f or call.keywords or ops != [ast.Eq]:
            return None
        values = [ast.literal_eval(n) for n in (*call.args, *node.comparators)]
        if is_too_deep(values):
            return None
        *arguments, result = json.loads(json.dumps(values, allow_nan=False))
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return None
    return Case(tuple(arguments), result)


def _test_text(argument: Any, result: Any) -> str:
    return f"<test>f({argument!r}) == {result!r}</test>"
