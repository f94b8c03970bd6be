"""Answer questions with the help of Python programs that really run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rllib_llm.envs.parsing import require_choice, require_int
from rllib_llm.envs.python_tool.questions import LEVELS, draw_question
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer
from rllib_llm.graders.texts import number_match
from rllib_llm.sandbox import BACKENDS, result_text, shared_sandbox

_RANDOM_PROGRAMS = ("print({0} + {1})", "print({0} * {1})", "print({1} - {0})")


@register_text_env("python_tool-v0")
class PythonTool(ToolOrAnswer):
    """Run programs, then answer. Return 1 if the answer is right.

    Programs run in the sandbox, each in a fresh process: nothing stays from one to the
    next. Questions are split into train and test by the hash of their text.
    """

    max_turns = 4
    format_hint = "Use <python>print(1 + 2)</python> or <answer>3</answer>."
    tagged = re.compile(r"<(python|answer)>((?:(?!<\1>).)*?)</\1>", re.DOTALL)

    def start(
        self,
        rng: np.random.Generator,
        level: int = 1,
        digits: int = 2,
        sandbox: str = "fork_server",
    ) -> str:
        """Draw a question.

        Args:
            rng: Decides the question.
            level: 1: expressions, 2: word problems, 3: questions that need a loop.
            digits: Most digits of the numbers in it, in [1, 4].
            sandbox: Where programs run, "fork_server" or "monty".
        """
        require_int("level", level, 1, len(LEVELS))
        require_int("digits", digits, 1, 4)
        self._backend = require_choice("sandbox", sandbox, BACKENDS)
        shared_sandbox(sandbox)  # refuses platforms that cannot isolate
        while True:
            self.question = draw_question(rng, level, digits)
            if in_split(self.question.text, self.split):
                break
        self._output = ""
        return (
            f"{self.question.text} "
            "Use <python>print(1 + 2)</python>, then <answer>3</answer>."
        )

    def use(self, text: str) -> str:
        """Run a program."""
        result = shared_sandbox(self._backend).run(text)
        self._output = result_text(result)
        self.used = {"tool": "python", "tool_error": not result.ok}
        return self._output

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare numbers exactly."""
        is_right = number_match(answer, self.question.answer, tolerance=0.0)
        return float(is_right), is_right

    def more_info(self) -> dict[str, Any]:
        """Return the right answer, and what the tool did in this turn."""
        gold = {"gold_answers": [str(self.question.answer)]}
        return {**gold, "tool": None, "tool_error": False, **self.used}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Run the program, then answer what it printed."""
        if self._output == str(self.question.answer):
            return f"<answer>{self._output}</answer>"
        return f"<python>{self.question.program}</python>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Run some program with the question's numbers, or answer one of them."""
        numbers = rng.permutation(self.question.numbers)
        if rng.random() < 0.5:
            program = _RANDOM_PROGRAMS[int(rng.integers(len(_RANDOM_PROGRAMS)))]
            return f"<python>{program.format(*numbers)}</python>"
        return f"<answer>{numbers[0]}</answer>"
