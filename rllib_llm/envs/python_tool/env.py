"""Answer questions with the help of Python programs in a sandbox."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.envs.parsing import require_choice, require_int
from rllib_llm.envs.python_tool.questions import LEVELS, draw_question, family_name
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import in_split
from rllib_llm.envs.tool_or_answer import ToolOrAnswer
from rllib_llm.errors import ConfigError
from rllib_llm.graders.short_answers import number_match
from rllib_llm.sandbox import BACKENDS, result_text, shared_sandbox
from rllib_llm.sandbox.functions import Function, read_function, with_functions

_RANDOM_PROGRAMS = ("print({0} + {1})", "print({0} * {1})", "print({1} - {0})")


@register_text_env("python_tool-v0")
class PythonTool(ToolOrAnswer):
    """Run programs, then answer. Return 1 if the answer is right.

    Each program runs in the sandbox in a fresh process, without the state of earlier
    ones, after the sources of ``functions``, which the first message describes.
    Questions are split into train and test by the hash of their text.
    """

    max_turns = 4
    format_hint = "Use <python>print(1 + 2)</python> or <answer>3</answer>."
    tagged = re.compile(r"<(python|answer)>((?:(?!<\1>).)*?)</\1>", re.DOTALL)

    def start(
        self,
        rng: np.random.Generator,
        level: int = 1,
        digits: int = 2,
        families: Sequence[str] = (),
        functions: Sequence[str] = (),
        sandbox: str = "fork_server",
    ) -> str:
        """Draw a question.

        Args:
            rng: Generator of the question.
            level: 1: expressions, 2: word problems, 3: questions that need a loop.
            digits: Maximum number of digits of its numbers, in [1, 4].
            families: Names of the level's families that are asked; empty: all.
            functions: Sources of functions that programs may call.
            sandbox: Sandbox backend, "fork_server" or "monty".
        """
        require_int("level", level, 1, len(LEVELS))
        require_int("digits", digits, 1, 4)
        names = tuple(map(family_name, LEVELS[level]))
        for family in families:
            require_choice("families", family, names)
        self._backend = require_choice("sandbox", sandbox, BACKENDS)
        shared_sandbox(sandbox)  # fails here if the platform cannot isolate programs
        while True:
            self.question = draw_question(rng, level, digits, families)
            if in_split(self.question.text, self.split):
                break
        self._output = ""
        self.functions = [_function(source) for source in functions]
        lines = [f"{function.summary}\n" for function in self.functions]
        return (
            f"{''.join(lines)}{self.question.text} "
            "Use <python>print(1 + 2)</python>, then <answer>3</answer>."
        )

    def use(self, text: str) -> str:
        """Run a program and return its output."""
        result = shared_sandbox(self._backend).run(with_functions(self.functions, text))
        self._output = result_text(result)
        self.used = {"tool": "python", "tool_error": not result.ok}
        return self._output

    def judge(self, answer: str) -> tuple[float, bool]:
        """Compare numbers exactly."""
        is_right = number_match(answer, self.question.answer, tolerance=0.0)
        return float(is_right), is_right

    def more_info(self) -> dict[str, Any]:
        """Return the right answer, and the tool's use in this turn."""
        gold = {"gold_answers": [str(self.question.answer)]}
        return {**gold, "tool": None, "tool_error": False, **self.used}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the program, then its output as the answer.

        The program is a call, if there is a function with the name of the family.
        """
        if self._output == str(self.question.answer):
            return f"<answer>{self._output}</answer>"
        if any(f.name == self.question.family for f in self.functions):
            return f"<python>print({self.question.call})</python>"
        return f"<python>{self.question.program}</python>"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a program on the question's numbers, or one of them as the answer."""
        numbers = rng.permutation(self.question.numbers)
        if rng.random() < 0.5:
            program = _RANDOM_PROGRAMS[int(rng.integers(len(_RANDOM_PROGRAMS)))]
            return f"<python>{program.format(*numbers)}</python>"
        return f"<answer>{numbers[0]}</answer>"


@functools.lru_cache(maxsize=256)
def _function(source: str) -> Function:
    try:
        return read_function(source)
    except ValueError as error:
        raise ConfigError(f"functions: {error} Correct it: {source!r}.") from error
