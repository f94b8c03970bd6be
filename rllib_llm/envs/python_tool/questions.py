"""Questions whose answer is an integer that a short program computes.

Each family draws its numbers and returns the question, the program, and the answer,
which is computed here independently of the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

NAMES = ("Ann", "Ben", "Eva", "Kim", "Leo", "Mia", "Tom", "Zoe")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stamps")


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its answer.

    Attributes:
        text: Text of the question.
        program: A program that prints the answer.
        answer: The right answer.
        numbers: Numbers in the question, in the order of the text.
        family: Name of its family, e.g. "squares".
    """

    text: str
    program: str
    answer: int
    numbers: tuple[int, ...]
    family: str = ""

    @property
    def call(self) -> str:
        """Return the call of a function with the name of the family."""
        return f"{self.family}({', '.join(map(str, self.numbers))})"


class Draw:
    """Random draws for the families.

    Args:
        rng: Generator of all draws.
        digits: Maximum number of digits of a number, >= 1.
    """

    def __init__(self, rng: np.random.Generator, digits: int):
        self._rng = rng
        self._digits = digits

    def number(self, low: int = 2) -> int:
        """Return a number from ``low`` with at most ``digits`` digits."""
        return self.between(low, max(low, 10**self._digits - 1))

    def between(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``."""
        return int(self._rng.integers(low, high + 1))

    def one_of(self, items: tuple[str, ...]) -> str:
        """Return any of the words."""
        return items[int(self._rng.integers(len(items)))]


def _expression(draw: Draw) -> Question:
    a, b, c = (draw.number() for _ in range(3))
    first, second = (draw.one_of(("+", "-", "*")) for _ in range(2))
    left = {"+": a + b, "-": a - b, "*": a * b}[first]
    # Multiplication binds tighter than the operation before it.
    if second == "*" and first != "*":
        answer = a + b * c if first == "+" else a - b * c
    else:
        answer = {"+": left + c, "-": left - c, "*": left * c}[second]
    text = f"{a} {first} {b} {second} {c}"
    return Question(f"What is {text}?", f"print({text})", answer, (a, b, c))


def _boxes(draw: Draw) -> Question:
    a, b = draw.number(), draw.number()
    c = draw.between(1, a * b)
    who, what = draw.one_of(NAMES), draw.one_of(THINGS)
    text = f"{who} has {a} boxes of {b} {what} and gives away {c}. How many are left?"
    return Question(text, f"print({a} * {b} - {c})", a * b - c, (a, b, c))


def _purchase(draw: Draw) -> Question:
    a, b, c, d = (draw.number() for _ in range(4))
    who, first, second = draw.one_of(NAMES), *(draw.one_of(THINGS) for _ in range(2))
    text = (
        f"{who} buys {a} {first} at {b} cents and {c} {second} at {d} cents. "
        "How many cents is that?"
    )
    program = f"print({a} * {b} + {c} * {d})"
    return Question(text, program, a * b + c * d, (a, b, c, d))


def _shares(draw: Draw) -> Question:
    a, b = draw.number(3), draw.number()
    what = draw.one_of(THINGS)
    text = f"{b} people share {a} {what} evenly. How many {what} are left over?"
    return Question(text, f"print({a} % {b})", a % b, (b, a))


def _savings(draw: Draw) -> Question:
    a, b, c = draw.number(), draw.number(), draw.number()
    who = draw.one_of(NAMES)
    text = (
        f"{who} has {a} coins and saves {b} more a week. "
        f"How many coins are there after {c} weeks?"
    )
    return Question(text, f"print({a} + {b} * {c})", a + b * c, (a, b, c))


def _squares(draw: Draw) -> Question:
    a = draw.number()
    b = a + draw.number()
    answer = sum(i * i for i in range(a, b + 1))
    text = f"What is the sum of the squares from {a} to {b}?"
    program = f"print(sum(i * i for i in range({a}, {b} + 1)))"
    return Question(text, program, answer, (a, b))


def _divisible(draw: Draw) -> Question:
    a, p, q = draw.number(), draw.between(2, 9), draw.between(2, 9)
    b = a + draw.number()
    answer = len([i for i in range(a, b + 1) if i % p == 0 and i % q != 0])
    text = f"How many numbers from {a} to {b} are multiples of {p} but not of {q}?"
    program = f"print(sum(i % {p} == 0 and i % {q} > 0 for i in range({a}, {b} + 1)))"
    return Question(text, program, answer, (a, b, p, q))


def _digits(draw: Draw) -> Question:
    a, b = draw.number(), draw.between(2, 99)
    answer, rest = 0, a**b
    while rest:
        rest, digit = divmod(rest, 10)
        answer += digit
    text = f"What is the sum of the digits of {a} ** {b}?"
    return Question(text, f"print(sum(map(int, str({a} ** {b}))))", answer, (a, b))


def _remainder(draw: Draw) -> Question:
    a, b, c = draw.number(), draw.number(), draw.number()
    text = f"What is the remainder of {a} ** {b} divided by {c}?"
    return Question(text, f"print({a} ** {b} % {c})", pow(a, b, c), (a, b, c))


def _sequence(draw: Draw) -> Question:
    a, b, n = draw.number(1), draw.number(1), draw.between(3, 30)
    terms = [a, b]
    while len(terms) < n:
        terms.append(terms[-1] + terms[-2])
    text = (
        f"A sequence begins with {a}, {b}; each later number is the sum of the two "
        f"before it. What is number {n}?"
    )
    program = (
        f"a, b = {a}, {b}\nfor i in range({n} - 1):\n    a, b = b, a + b\nprint(a)"
    )
    return Question(text, program, terms[-1], (a, b, n))


Family = Callable[[Draw], Question]
LEVELS: dict[int, tuple[Family, ...]] = {
    1: (_expression,),
    2: (_boxes, _purchase, _shares, _savings),
    3: (_squares, _divisible, _digits, _remainder, _sequence),
}


def family_name(family: Family) -> str:
    """Return the name of a family, e.g. "squares"."""
    return family.__name__.lstrip("_")


def draw_question(
    rng: np.random.Generator, level: int, digits: int, names: Sequence[str] = ()
) -> Question:
    """Return a question of a level.

    Args:
        rng: Generator of the question.
        level: A key of ``LEVELS``.
        digits: Maximum number of digits of its numbers.
        names: Names of its families; empty: all.
    """
    families = [f for f in LEVELS[level] if not names or family_name(f) in names]
    family = families[int(rng.integers(len(families)))]
    return dataclasses.replace(family(Draw(rng, digits)), family=family_name(family))
