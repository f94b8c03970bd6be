"""Families of small functions: description, solution, and right results.

A family has a sentence and a solution with placeholders for its parameters. The right
results come from a separate function in this process, never from the solution's text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rllib_llm.graders.unit_tests import Case

Params = dict[str, int]
_WORDS = ("ant", "bird", "cat", "dove", "eagle", "fox", "goat", "heron", "koala", "owl")
_VOWELS = "aeiou"


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of function.

    Attributes:
        level: Difficulty, from 1.
        argument: Name of its argument, which also determines the kind of value: a key
            of ``_ARGUMENTS``.
        asked: Description of the result, with placeholders for parameters.
        body: Lines of the solution after ``def``.
        result: Returns the right result, given the parameters and the argument.
        params: Smallest and largest value of each parameter.
    """

    level: int
    argument: str
    asked: str
    body: str
    result: Callable[[Params, Any], Any]
    params: dict[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Task:
    """One function to write.

    Attributes:
        head: E.g. ``f(numbers)``.
        asked: Description of the result.
        solution: A right solution.
        mistake: A solution of the same family with other parameters.
        cases: Tests.
        family: Index of its family.
        params: Its parameters.
        others: Those of the mistake.
    """

    head: str
    asked: str
    solution: str
    mistake: str
    cases: tuple[Case, ...]
    family: int
    params: Params
    others: Params

    def result(self, argument: Any, params: Params | None = None) -> Any:
        """Return the right result for an argument, or that of other parameters."""
        return FAMILIES[self.family].result(params or self.params, argument)

    def small_argument(self, rng: np.random.Generator) -> Any:
        """Return an argument whose result is easy to find without running code."""
        return _SMALL[FAMILIES[self.family].argument](rng)


def _fibonacci(p: Params, n: int) -> int:
    terms = [p["a"], p["b"]]
    while len(terms) <= n:
        terms.append((terms[-1] + terms[-2]) % p["m"])
    return terms[n]


def _digit_sum(base: int, n: int) -> int:
    return n % base + _digit_sum(base, n // base) if n else 0


def _shifted(k: int, text: str) -> str:
    return "".join(chr((ord(c) - 97 + k) % 26 + 97) if c != " " else c for c in text)


def _longest_run(k: int, numbers: list[int]) -> int:
    runs = "".join("x" if n > k else " " for n in numbers).split()
    return max(map(len, runs), default=0)


FAMILIES: tuple[Family, ...] = (
    Family(
        1,
        "number",
        "number times {a} plus {b}",
        "return number * {a} + {b}",
        lambda p, x: x * p["a"] + p["b"],
        {"a": (2, 20), "b": (1, 20)},
    ),
    Family(
        1,
        "number",
        "number, but at least {a} and at most {b}",
        "return max({a}, min({b}, number))",
        lambda p, x: p["a"] if x < p["a"] else min(x, p["b"]),
        {"a": (0, 15), "b": (16, 40)},
    ),
    Family(
        1,
        "numbers",
        "the sum of the numbers greater than {k}",
        "return sum(n for n in numbers if n > {k})",
        lambda p, x: sum(n for n in x if not n <= p["k"]),
        {"k": (1, 15)},
    ),
    Family(
        1,
        "numbers",
        "how many numbers are multiples of {k}",
        "return sum(n % {k} == 0 for n in numbers)",
        lambda p, x: len([n for n in x if n % p["k"] == 0]),
        {"k": (2, 9)},
    ),
    Family(
        1,
        "numbers",
        "the numbers times {a}, without those less than {b}",
        "return [n * {a} for n in numbers if n >= {b}]",
        lambda p, x: [n * p["a"] for n in x if not n < p["b"]],
        {"a": (2, 9), "b": (0, 9)},
    ),
    Family(
        1,
        "numbers",
        "the {k} largest numbers, largest first",
        "return sorted(numbers, reverse=True)[:{k}]",
        lambda p, x: sorted(x)[::-1][: p["k"]],
        {"k": (1, 5)},
    ),
    Family(
        2,
        "words",
        "the words of more than {k} letters, joined by '{c}'",
        "return '{c}'.join(w for w in words if len(w) > {k})",
        lambda p, x: "-+/"[p["c"]].join([w for w in x if len(w) >= p["k"] + 1]),
        {"k": (2, 4), "c": (0, 2)},
    ),
    Family(
        2,
        "text",
        "text with every vowel written {k} times",
        "return ''.join(c * {k} if c in 'aeiou' else c for c in text)",
        lambda p, x: "".join(c * (p["k"] if c in _VOWELS else 1) for c in x),
        {"k": (2, 30)},
    ),
    Family(
        2,
        "number",
        "the sum of the digits of abs(number) written in base {k}",
        "number, total = abs(number), 0\n"
        "while number:\n"
        "    total += number % {k}\n"
        "    number //= {k}\n"
        "return total",
        lambda p, x: _digit_sum(p["k"], abs(x)),
        {"k": (2, 30)},
    ),
    Family(
        2,
        "numbers",
        "the numbers without repetitions and without multiples of {k}, in order",
        "return [n for n in dict.fromkeys(numbers) if n % {k}]",
        lambda p, x: [n for i, n in enumerate(x) if n % p["k"] and n not in x[:i]],
        {"k": (2, 9)},
    ),
    Family(
        2,
        "numbers",
        "the differences of neighbours, later minus earlier, times {a} plus {b}",
        "return [(b - a) * {a} + {b} for a, b in zip(numbers, numbers[1:])]",
        lambda p, x: [
            (x[i + 1] - x[i]) * p["a"] + p["b"] for i in range(max(0, len(x) - 1))
        ],
        {"a": (2, 9), "b": (0, 9)},
    ),
    Family(
        3,
        "numbers",
        "the length of the longest run of numbers greater than {k}",
        "best = run = 0\n"
        "for n in numbers:\n"
        "    run = run + 1 if n > {k} else 0\n"
        "    best = max(best, run)\n"
        "return best",
        lambda p, x: _longest_run(p["k"], x),
        {"k": (-2, 15)},
    ),
    Family(
        3,
        "text",
        "text with its letters a to z moved on by {k}, z before a",
        "moved = [(ord(c) - 97 + {k}) % 26 + 97 for c in text]\n"
        "return ''.join(' ' if c == ' ' else chr(m) for c, m in zip(text, moved))",
        lambda p, x: _shifted(p["k"], x),
        {"k": (1, 25)},
    ),
    Family(
        3,
        "count",
        "number count, from 0, of {a}, {b}, ..., each the sum of the two before it "
        "modulo {m}",
        "a, b = {a}, {b}\n"
        "for i in range(count):\n"
        "    a, b = b, (a + b) % {m}\n"
        "return a",
        _fibonacci,
        {"a": (0, 6), "b": (1, 6), "m": (7, 40)},
    ),
    Family(
        3,
        "numbers",
        "the largest sum of {k} neighbours, 0 if there are fewer numbers",
        "if len(numbers) < {k}:\n"
        "    return 0\n"
        "return max(sum(numbers[i:i + {k}]) for i in range(len(numbers) - {k} + 1))",
        lambda p, x: max(
            (sum(x[i : i + p["k"]]) for i in range(len(x)) if i + p["k"] <= len(x)),
            default=0,
        ),
        {"k": (2, 5)},
    ),
    Family(
        3,
        "words",
        "how often each word of at least {k} letters occurs, as a dictionary",
        "return {{w: words.count(w) for w in words if len(w) >= {k}}}",
        lambda p, x: {w: sum(v == w for v in x) for w in x if not len(w) < p["k"]},
        {"k": (1, 5)},
    ),
)

NUM_LEVELS = max(family.level for family in FAMILIES)


def _words(rng: np.random.Generator) -> list[str]:
    return [str(w) for w in rng.choice(_WORDS, size=int(rng.integers(0, 6)))]


_ARGUMENTS: dict[str, Callable[[np.random.Generator], Any]] = {
    "number": lambda rng: int(rng.integers(-20, 100)),
    "count": lambda rng: int(rng.integers(0, 100)),
    "numbers": lambda rng: rng.integers(-5, 25, size=int(rng.integers(0, 8))).tolist(),
    "words": _words,
    "text": lambda rng: " ".join(_words(rng)),
}
_SMALL: dict[str, Callable[[np.random.Generator], Any]] = {
    "number": lambda rng: int(rng.choice([0, 1, 100])),
    "count": lambda rng: int(rng.integers(0, 5)),
    "numbers": lambda rng: rng.choice(
        [1, 2, 3, 5, 8, 10, 20], size=int(rng.integers(1, 4))
    ).tolist(),
    "words": lambda rng: _words(rng)[:2],
    "text": lambda rng: " ".join(_words(rng)[:1]),
}


def draw_task(rng: np.random.Generator, level: int, num_cases: int) -> Task:
    """Return a task of a level.

    Args:
        rng: Generator of the task.
        level: From 1 to ``NUM_LEVELS``.
        num_cases: Number of tests.
    """
    families = [i for i, f in enumerate(FAMILIES) if f.level == level]
    number = families[int(rng.integers(len(families)))]
    family = FAMILIES[number]
    params, others = _params(rng, family), _params(rng, family)
    arguments: dict[str, Any] = {}  # distinct, so that hidden tests are not visible
    while len(arguments) < num_cases:
        drawn = _ARGUMENTS[family.argument](rng)
        arguments.setdefault(repr(drawn), drawn)
    head = f"f({family.argument})"
    return Task(
        head,
        family.asked.format(**_shown(params)),
        _function(head, family, params),
        _function(head, family, others),
        tuple(Case((x,), family.result(params, x)) for x in arguments.values()),
        number,
        params,
        others,
    )


def _params(rng: np.random.Generator, family: Family) -> Params:
    return {n: int(rng.integers(a, b + 1)) for n, (a, b) in family.params.items()}


def _shown(params: Params) -> dict[str, Any]:
    """Return parameters as they are printed; ``c`` is the index of a sign."""
    return {k: "-+/"[v] if k == "c" else v for k, v in params.items()}


def _function(head: str, family: Family, params: Params) -> str:
    lines = family.body.format(**_shown(params)).split("\n")
    return "\n".join([f"def {head}:", *("    " + line for line in lines)])
