"""Exact arithmetic on untrusted text: ``+ - * /``, unary minus, integers, brackets.

Model output is never executed. It is restricted to a few characters, parsed into a
syntax tree, checked node by node, and evaluated with fractions.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_CHARS = 128
MAX_NODES = 64
MAX_DIGITS = 6

_ALLOWED = re.compile(r"[0-9+\-*/() ]+")
_TOO_LONG = re.compile(rf"[0-9]{{{MAX_DIGITS + 1},}}")
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class ExpressionError(ValueError):
    """The text is not an arithmetic expression of the permitted kind."""


def parse_expression(text: str) -> ast.expr:
    """Parse an expression, rejecting everything but plain arithmetic.

    Args:
        text: At most ``MAX_CHARS`` characters; integers of at most ``MAX_DIGITS``
            digits; at most ``MAX_NODES`` numbers and operations.

    Returns:
        A tree of additions, subtractions, multiplications, divisions, negations and
        non-negative integers only.

    Raises:
        ExpressionError: For any other text.
    """
    text = text.strip(" \t")
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"longer than {MAX_CHARS} characters")
    if not _ALLOWED.fullmatch(text):
        raise ExpressionError("only integers, + - * / and round brackets are allowed")
    if _TOO_LONG.search(text):
        raise ExpressionError(f"a number has more than {MAX_DIGITS} digits")
    # The length limit above keeps Python's recursive parser within its stack.
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ExpressionError(f"not an expression: {error}") from None
    if _count_nodes(tree) > MAX_NODES:
        raise ExpressionError(f"more than {MAX_NODES} numbers and operations")
    return tree


def evaluate(tree: ast.expr) -> Fraction:
    """Evaluate a tree of :func:`parse_expression` exactly.

    Raises:
        ZeroDivisionError: For a division by zero.
    """
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return Fraction(tree.value)
    if isinstance(tree, ast.UnaryOp):
        return -evaluate(tree.operand)
    assert isinstance(tree, ast.BinOp)  # parse_expression() admits no other nodes
    return _OPERATIONS[type(tree.op)](evaluate(tree.left), evaluate(tree.right))


def numbers_in(tree: ast.expr) -> list[int]:
    """Return the integers in the tree, sorted, with repetitions."""
    constants = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    return sorted(value for value in constants if isinstance(value, int))


def _count_nodes(tree: ast.expr) -> int:
    """Return the number of numbers and operations; raise on any other node."""
    # bool is a subclass of int, so isinstance would accept True.
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return 1
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return 1 + _count_nodes(tree.operand)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
        return 1 + _count_nodes(tree.left) + _count_nodes(tree.right)
    raise ExpressionError("only + - * / between integers is allowed")
