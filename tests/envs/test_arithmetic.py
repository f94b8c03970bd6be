"""The evaluator of untrusted arithmetic, against a parser written another way."""

import random
import re
import warnings
from fractions import Fraction

import pytest

from rllib_llm.envs.arithmetic import (
    ExpressionError,
    evaluate,
    numbers_in,
    parse_expression,
)

HOSTILE = [
    "__import__('os').system('true')",
    "().__class__.__mro__",
    "exec('1')",
    "print(1)",
    "a",
    "1 if 1 else 2",
    "lambda: 1",
    "[1]",
    "{1}",
    "1, 2",
    "()",
    "3(4)",
    "1;2",
    "1\n2",
    "9**9**9",
    "2**1000000",
    "1//2",
    "7%3",
    "1<<99",
    "1|2",
    "~1",
    "+1",
    "not 1",
    "True",
    "1.5",
    "1e9",
    "1j",
    "0x10",
    "1_000",
    "007",
    "'1'",
    "f'{1}'",
    "1=1",
    "x:=1",
    "1 # comment",
    "\u0663+\u0664",
    "\uff11+1",
    "1\x00+1",
    "1\\\n+1",
    "9999999",
    "9" * 100,
    "9" * 100_000,
    "(" * 120,
    "(" * 60 + ")" * 60,
    "(" * 100_000 + "1" + ")" * 100_000,
    "-" * 127 + "1",
    "-" * 100_000 + "1",
    "1" + "+1" * 63,
    "1" + "+1" * 100_000,
    "",
    " ",
    "1+",
    "*1",
    "1 1",
    "(1",
    "1)",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_hostile_text_is_refused(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ExpressionError):
            parse_expression(text)


class _Reader:
    """Recursive descent: sum -> product -> factor; none of it uses Python's parser."""

    def __init__(self, text: str):
        self.tokens = re.findall(r"\d+|\S", text)
        self.numbers: list[int] = []

    def read(self) -> Fraction:
        value = self.sum()
        if self.tokens:
            raise SyntaxError(self.tokens[0])
        return value

    def next_is(self, symbols: str) -> bool:
        return bool(self.tokens) and self.tokens[0] in symbols

    def sum(self) -> Fraction:
        value = self.product()
        while self.next_is("+-"):
            sign = 1 if self.tokens.pop(0) == "+" else -1
            value += sign * self.product()
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while self.next_is("*/"):
            if self.tokens.pop(0) == "*":
                value *= self.factor()
            else:
                value /= self.factor()
        return value

    def factor(self) -> Fraction:
        if not self.tokens:
            raise SyntaxError("end")
        token = self.tokens.pop(0)
        if token == "-":
            return -self.factor()
        if token == "(":
            value = self.sum()
            if not self.next_is(")"):
                raise SyntaxError("bracket")
            self.tokens.pop(0)
            return value
        if not re.fullmatch(r"0+|[1-9]\d{0,5}", token):
            raise SyntaxError(token)
        self.numbers.append(int(token))
        return Fraction(int(token))


def _outcome(read, text):
    """Value and numbers, or the kind of failure."""
    try:
        return read(text)
    except ZeroDivisionError:
        return "zero"
    except (SyntaxError, ExpressionError):
        return "refused"


def _ours(text: str):
    tree = parse_expression(text)
    return evaluate(tree), numbers_in(tree)


def _theirs(text: str):
    reader = _Reader(text)
    value = reader.read()
    return value, sorted(reader.numbers)


def test_agrees_with_an_independent_parser():
    source = random.Random(0)
    outcomes = {"zero": 0, "refused": 0, "value": 0}
    for _ in range(40_000):
        components = source.choices("01237+-*/() ", k=source.randint(1, 9))
        text = "".join(components)
        ours, theirs = _outcome(_ours, text), _outcome(_theirs, text)
        # Where a division by zero precedes a syntax error the reader stops early.
        if theirs == "zero" and ours == "refused":
            continue
        assert ours == theirs, text
        outcomes[ours if isinstance(ours, str) else "value"] += 1
    assert min(outcomes.values()) > 50, outcomes


def test_fractions_are_exact():
    assert evaluate(parse_expression("1/3+1/3+1/3")) == 1
    assert evaluate(parse_expression("-(2-5)*4")) == 12
    assert evaluate(parse_expression("  7 ")) == 7


def test_sixty_four_nodes_are_allowed():
    assert evaluate(parse_expression("1" + "+1" * 31)) == 32
    with pytest.raises(ExpressionError, match="more than 64"):
        parse_expression("1" + "+1" * 32)
