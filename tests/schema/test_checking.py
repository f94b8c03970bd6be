"""Checks of values against annotations, and their messages."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import pytest
from annotated_types import Ge, Gt, Interval, MinLen

from rllib_llm.errors import ConfigError
from rllib_llm.schema import (
    Fraction,
    Hint,
    InfinityAllowed,
    OneOf,
    PositiveInt,
    Rule,
    SubclassOf,
    bounds_of,
    choices_of,
    describe,
    find_problem,
    require,
    show,
)


class Sizes(TypedDict, total=False):
    width: PositiveInt
    names: list[str]


EVEN = Rule("an even number", lambda value: value % 2 == 0)
GOOD = [
    (float, [0, 1, 0.5, -2.0, np.float32(1.5), np.int64(3)]),
    (int, [0, -3, np.int64(3), 2**62]),
    (bool, [True, False]),
    (str, ["", "a"]),
    (None, [None]),
    (Any, [None, ..., math.nan]),
    (Annotated[float, Ge(0)], [0, 0.0, 3]),
    (Annotated[float, Interval(gt=0, lt=1)], [0.5]),
    (Annotated[float, InfinityAllowed()], [math.inf]),
    (Annotated[int, EVEN], [4]),
    (Literal["a", 1, None], ["a", 1, None]),
    (Annotated[str, OneOf(("x", "y"))] | None, ["x", None]),
    (float | Literal["auto"], [1, "auto"]),
    (list[str], [[], ["a"], ("a", "b")]),
    (Sequence[Annotated[str, MinLen(1)]], [["a"]]),
    (Collection[str], [["a"], {"a"}, {"a": 1}]),
    (Mapping[str, int], [{}, {"a": 1}]),
    (Sizes, [{}, {"width": 3, "names": ["a"]}]),
    (Callable[..., str], [len, str.upper]),
    (type, [int]),
    (Annotated[type, SubclassOf("builtins:Exception")], [ValueError]),
]
BAD = [
    (float, ["1", True, None, math.nan, math.inf, 10**400, [1], np.nan]),
    (int, [1.0, "1", True, 2**63, None, math.nan, np.float64(2)]),
    (bool, [1, 0, "true", None]),
    (str, [1, None, b"a", ["a"]]),
    (None, [0, ""]),
    (Annotated[float, Ge(0)], [-1, -1e-9, math.nan]),
    (Annotated[float, Gt(0)], [0]),
    (Fraction, [1.1, -0.1]),
    (Annotated[float, Interval(gt=0, lt=1)], [0, 1]),
    (Annotated[float, InfinityAllowed()], [math.nan]),
    (Annotated[int, EVEN], [3]),
    (Literal["a", 1], ["b", True, 1.0]),
    (Annotated[str, OneOf(("x", "y"))] | None, ["z", 1, ["x"]]),
    (float | Literal["auto"], ["aut", None]),
    (list[str], ["ab", [1], {"a": 1}, None]),
    (Sequence[Annotated[str, MinLen(1)]], [[""], "a"]),
    (Collection[str], ["a", [1], 3]),
    (Mapping[str, int], [{1: 1}, {"a": "b"}, [("a", 1)]]),
    (Sizes, [{"width": 0}, {"names": "a"}, {"height": 1}, {1: 2}, 3]),
    (Callable[..., str], ["len", 1]),
    (type, ["int", 1]),
    (Annotated[type, SubclassOf("builtins:Exception")], [int, "ValueError"]),
]


@pytest.mark.parametrize(("kind", "values"), GOOD, ids=lambda v: str(v)[:40])
def test_valid_values(kind, values):
    for value in values:
        assert find_problem("x", value, kind) is None, value


@pytest.mark.parametrize(("kind", "values"), BAD, ids=lambda v: str(v)[:40])
def test_invalid_values(kind, values):
    for value in values:
        with pytest.raises(ConfigError, match=r"^x"):
            require("x", value, kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Annotated[float, Ge(0)], "a number >= 0"),
        (Annotated[int, Gt(1)] | None, "a whole number > 1 or None"),
        (Fraction, "a number in [0, 1]"),
        (Annotated[float, Interval(gt=0, lt=1)], "a number in (0, 1)"),
        (Annotated[float, Interval(le=2)], "a number <= 2"),
        (Literal["a", "b"], "one of a, b"),
        (Literal["a"] | None, "'a' or None"),
        (bool | None, "true or false or None"),
        (list[str], "a list of strings"),
        (dict[str, int], "a mapping"),
        (Sizes | None, "a mapping or None"),
        (Annotated[int, EVEN], "an even number"),
        (Callable[..., str], "a function"),
        (Any, "anything"),
    ],
)
def test_descriptions_of_types(kind, text):
    assert describe(kind) == text


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (-1, Annotated[float, Ge(0)], "a.b=-1 must be a number >= 0."),
        ("1e-3", float, "a.b='1e-3' must be a number. Write it without quotes."),
        (2.0, int, "a.b=2.0 must be a whole number. Write 2."),
        (math.nan, float, "a.b=nan must be a number. It must be finite."),
        (
            "joyn",
            Literal["join", "split"],
            "a.b='joyn' must be one of join, split. Did you mean 'join'?",
        ),
        ({"width": 0}, Sizes, "a.b.width=0 must be a whole number >= 1."),
        ({"widht": 1}, Sizes, "a.b has no setting 'widht'. Did you mean 'width'?"),
        ({"names": [1]}, Sizes | None, "a.b.names[0]=1 must be a string."),
        ({1: 1}, dict[str, int], "a.b: the key 1 must be a string."),
        (3, Annotated[str, Hint("Use a name.")], "a.b=3 must be a string. Use a name."),
    ],
)
def test_messages_name_place_value_rule_and_remedy(value, kind, message):
    assert str(find_problem("a.b", value, kind)) == message


def test_every_value_of_a_search_space_is_checked():
    from ray import tune

    kind = Annotated[float, Ge(0)]
    for space in (
        tune.grid_search([0.1, 0.2]),
        tune.choice([1, 2]),
        tune.uniform(0.0, 1.0),
        tune.loguniform(1e-5, 1e-3),
        tune.sample_from(lambda spec: 1),
    ):
        assert find_problem("x", space, kind) is None
    for space, wrong in (
        (tune.grid_search([0.1, -2]), "x=-2"),
        (tune.choice([1, "a"]), "x='a'"),
        (tune.uniform(-1.0, 1.0), "x=-1.0"),
        ({"grid_search": 3.0j}, "x=3j"),
    ):
        assert str(find_problem("x", space, kind)).startswith(wrong)
    nested = {"width": tune.grid_search([1, 0])}
    assert str(find_problem("x", nested, Sizes)).startswith("x.width=0")
    assert find_problem("x", tune.randint(1, 5), PositiveInt) is None


def test_values_are_shown_short_whatever_they_are():
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert len(show("x" * 10**6)) < 300
    assert "RuntimeError" in show(Odd())
    assert "ValueError" in show(10**5000)  # more digits than Python prints
    assert len(str(find_problem("x", list(range(10**5)), float))) < 400


def test_bounds_and_choices_can_be_read():
    assert bounds_of(Fraction | None) == (0, 1)
    assert bounds_of(Annotated[int, Ge(1)]) == (1, None)
    assert bounds_of(str) == (None, None)
    assert choices_of(float | Literal["auto"]) == ("auto",)
    assert choices_of(Annotated[str, OneOf("ab")] | None) == ("a", "b")
