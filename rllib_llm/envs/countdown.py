"""Countdown: reach a target with given numbers and the four operations."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.arithmetic import (
    ExpressionError,
    evaluate,
    numbers_in,
    parse_expression,
)
from rllib_llm.envs.parsing import last_match, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.text_env import TextEnv, in_split
from rllib_llm.errors import ConfigError

_MAX_DRAWS = 2_000


@register_text_env("countdown-v0")
class Countdown(TextEnv):
    """Combine all given numbers, each once, to the target. Return 1 if exact.

    After a wrong answer the model reads its value and may try again. The target is
    the value of a random expression, so a solution always exists. Instances are
    split into train and test by the hash of the sorted numbers and the target.
    """

    max_turns = 3
    format_hint = "Please answer as 'answer: (1 + 2) * 3'."
    _pattern = re.compile(r"\banswer:([^\n]*)", re.IGNORECASE)

    def start(
        self,
        rng: np.random.Generator,
        numbers: int = 3,
        max_number: int = 10,
        max_target: int = 50,
    ) -> str:
        """Draw the numbers and a reachable target.

        Args:
            rng: Generator of the instance.
            numbers: Number of given numbers, in [2, 6].
            max_number: Largest given number, in [2, 1000].
            max_target: Largest target, in [1, 10000].
        """
        require_int("numbers", numbers, 2, 6)
        require_int("max_number", max_number, 2, 1000)
        require_int("max_target", max_target, 1, 10_000)
        self.numbers, self.target = self._draw(rng, numbers, max_number, max_target)
        return (
            f"Make {self.target} from {self._listed()} with + - * /. "
            "Use each number once. Answer as 'answer: (1 + 2) * 3'."
        )

    def parse(self, completion: str) -> ast.expr | None:
        """Return the expression after the last ``answer:``."""
        match = last_match(self._pattern, completion)
        try:
            return parse_expression(match.group(1)) if match else None
        except ExpressionError:
            return None

    def reply(self, action: ast.expr) -> TurnResult:
        """Check the numbers in the expression and its value."""
        shown = ast.unparse(action)
        if numbers_in(action) != sorted(self.numbers):
            used = " ".join(map(str, numbers_in(action)))
            text = f"That uses {used}, not {self._listed()}. Try again."
            return TurnResult(text, success=False)
        try:
            value = evaluate(action)
        except ZeroDivisionError:
            text = f"{shown} divides by zero. Try again."
            return TurnResult(text, success=False)
        if value == self.target:
            return TurnResult("Correct!", reward=1.0, terminated=True, success=True)
        text = f"{shown} = {value}, not {self.target}. Try again."
        return TurnResult(text, success=False)

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the first solution of an exhaustive search."""
        return f"answer: {next(solutions(self.numbers, self.target))}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random combination of the numbers."""
        return f"answer: {_tidy(_random_expression(self.numbers, rng))}"

    def _draw(
        self, rng: np.random.Generator, count: int, max_number: int, max_target: int
    ) -> tuple[list[int], int]:
        for _ in range(_MAX_DRAWS):
            numbers = [int(n) for n in rng.integers(1, max_number + 1, size=count)]
            tree = parse_expression(_random_expression(numbers, rng))
            try:
                value = evaluate(tree)
            except ZeroDivisionError:
                continue
            # Fractions are exact, so a non-integer value is detected without a
            # tolerance.
            if value.denominator != 1 or not 1 <= value <= max_target:
                continue
            target = int(value)
            if in_split(f"{sorted(numbers)} -> {target}", self.split):
                return numbers, target
        raise ConfigError(
            f"No {self.split} instance found in {_MAX_DRAWS} draws with numbers="
            f"{count}, max_number={max_number}, max_target={max_target}. Raise "
            "max_target."
        )

    def _listed(self) -> str:
        return " ".join(map(str, self.numbers))


def solutions(numbers: Sequence[int], target: int) -> Iterator[str]:
    """Yield expressions that use all ``numbers`` once and equal ``target``.

    The search combines any two numbers, then any two of the remaining values, and so
    on. It may yield an expression more than once.
    """
    items = [(Fraction(n), str(n)) for n in sorted(numbers)]
    return (_tidy(text) for value, text in _combinations(items) if value == target)


def _combinations(
    items: list[tuple[Fraction, str]],
) -> Iterator[tuple[Fraction, str]]:
    if len(items) == 1:
        yield items[0]
        return
    for i, j in itertools.permutations(range(len(items)), 2):
        (a, left), (b, right) = items[i], items[j]
        rest = [item for k, item in enumerate(items) if k not in (i, j)]
        joined = [(a - b, f"({left} - {right})")]
        # Sums and products commute: one order suffices.
        if i < j:
            joined += [(a + b, f"({left} + {right})"), (a * b, f"({left} * {right})")]
        if b != 0:
            joined.append((a / b, f"({left} / {right})"))
        for item in joined:
            yield from _combinations([*rest, item])


def _random_expression(numbers: Sequence[int], rng: np.random.Generator) -> str:
    """Join random pairs by random operations until one expression is left."""
    parts = [str(n) for n in numbers]
    while len(parts) > 1:
        left, right = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
        parts.append(f"({left} {rng.choice(list('+-*/'))} {right})")
    return parts[0]


def _tidy(expression: str) -> str:
    """Remove unnecessary brackets."""
    return ast.unparse(ast.parse(expression, mode="eval"))
