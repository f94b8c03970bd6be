"""Graders of texts, numbers, rows, JSON and mathematics."""

import pickle
import random
import time

import pytest

from rllib_llm.errors import MissingExtraError
from rllib_llm.graders import (
    MathGrader,
    best_f1,
    exact_match,
    json_problem,
    math_answers,
    number_match,
    read_number,
    rows_match,
    set_match,
    values_match,
)


def test_texts_are_compared_as_in_squad():
    assert exact_match("The  Eiffel-Tower!", "eiffeltower")
    assert exact_match("a cat", ["dog", "The cat."])
    assert not exact_match("cat", [])
    assert best_f1("the big cat", ["cat", "big dog"]) == pytest.approx(2 / 3)
    assert best_f1("", "cat") == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42.0),
        (" $1,234.50 ", 1234.5),
        ("50%", 50.0),
        ("-1e3", -1000.0),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("", None),
        ("four", None),
        ("1 + 1", None),
        ("9" * 5000, None),
        ("\u0663", 3.0),  # a digit, if not ours
        ("__import__('os')", None),
    ],
)
def test_numbers_are_read(text, number):
    assert read_number(text) == number


def test_numbers_match_within_tolerance():
    assert number_match("0.3333333", 1 / 3)
    assert not number_match("0.333", 1 / 3)
    assert number_match("0.333", "0.3333", tolerance=1e-2)
    assert number_match("1e-7", 0)
    big = 10**40 + 1
    assert number_match(f"{big:,}", big, tolerance=0.0)
    assert not number_match(str(big + 1), big, tolerance=0.0)
    assert number_match("3.0", 3, tolerance=0.0)
    assert not number_match("three", 3)
    with pytest.raises(ValueError, match="finite"):
        number_match("3", "three")
    with pytest.raises(ValueError, match="tolerance"):
        number_match("3", 3, tolerance=-1)


@pytest.mark.parametrize(
    ("given", "gold", "same"),
    [
        ([], [], True),
        ([(1, "a"), (2, None)], [[2, None], [1, "a"]], True),
        ([(1,), (1,)], [(1,)], False),
        ([(1,), (2,), (2,)], [(1,), (1,), (2,)], False),
        ([(1.0,)], [(1,)], True),
        ([("1",)], [(1,)], False),
        ([(True,)], [(1,)], False),
        ([(None,)], [("",)], False),
        ([(1, 2)], [(1,)], False),
        ([(0.1 + 0.2, "a"), (0.3, "b")], [(0.3, "a"), (0.1 + 0.2, "b")], True),
        ([(float("nan"),)], [(float("nan"),)], False),
        ([(2**60,)], [(2**60 + 1,)], False),
    ],
)
def test_rows_match_as_a_bag(given, gold, same):
    assert rows_match(given, gold) is same
    assert rows_match(gold, given) is same


def test_order_of_rows_counts_if_asked():
    rows = [(n, str(n)) for n in range(9)]
    mixed = random.Random(0).sample(rows, 9)
    assert rows_match(rows, mixed)
    assert not rows_match(rows, mixed, ordered=True)
    assert rows_match(rows, [list(r) for r in rows], ordered=True)


def test_sets_and_nested_values():
    assert set_match([1, 2, 2, "a", None], ["a", None, 2, 1])
    assert not set_match([1, True], [1])
    assert values_match([1, (2.0, "a")], (1, [2, "a"]))
    assert values_match({"a": [1]}, {"a": (1.0,)})
    assert not values_match({"a": 1}, {"b": 1})
    assert not values_match([True], [1])
    assert not values_match([], {})


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"n": 3}', None),
        ('{"n": -1}', r"\$\.n: -1 is less than"),
        ("{}", "'n' is a required property"),
        ("[]", r"\$: \[\] is not of type 'object'"),
        ("{'n': 3}", "no JSON"),
        ('{"n": NaN}', "NaN is no finite number"),
        ("[" * 99_000, "no JSON"),
        ("1" * 9_000, "no JSON|not of type"),
        (" " * 100_001, "longer than"),
    ],
)
def test_json_is_validated_against_a_schema(text, problem):
    found = json_problem(text, SCHEMA)
    if problem is None:
        assert found is None
    else:
        import re

        assert re.search(problem, found), found


def test_wrong_schemas_and_references_outside_are_refused():
    with pytest.raises(ValueError, match="not a valid JSON Schema"):
        json_problem("1", {"type": "nothing"})
    with pytest.raises(Exception, match="127.0.0.1"):
        json_problem("1", {"$ref": "http://127.0.0.1:9/schema.json"})


def test_math_needs_its_extra(monkeypatch):
    monkeypatch.setattr(math_answers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="rllib-llm.math"):
        MathGrader()


@pytest.fixture(scope="module")
def math_grader():
    pytest.importorskip("math_verify")
    grader = MathGrader(timeout_s=60.0)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("given", "gold", "same"),
    [
        ("0.5", "1/2", True),
        (r"$\frac{1}{2}$", "0.5", True),
        (r"so it is \boxed{x^2+1}", "$1+x^2$", True),
        (r"$\sqrt{8}$", r"$2\sqrt{2}$", True),
        (r"$\{1, 2\}$", r"$\{2, 1\}$", True),
        ("3", "4", False),
        ("no idea", "4", False),
        ("", "4", False),
        ("x" * 3_000, "4", False),
        ("__import__('os').system('false')", "4", False),
    ],
)
def test_math_is_compared_by_meaning(math_grader, given, gold, same):
    assert math_grader.match(given, gold) is same


def test_math_that_takes_too_long_is_killed(math_grader):
    math_grader.match("1", "1")
    pid = math_grader._worker.process.pid
    math_grader.timeout_s = 1.0
    began = time.monotonic()
    assert not math_grader.match("$9^{9^{9^9}}$", "$3$")
    assert time.monotonic() - began < 20
    math_grader.timeout_s = 60.0
    assert math_grader.match("2", "2")
    assert math_grader._worker.process.pid != pid


def test_math_workers_that_die_are_replaced(math_grader):
    math_grader.match("1", "1")
    math_grader._worker.process.kill()
    assert math_grader.match("2", "2")
    with pytest.raises(ValueError, match="cannot parse gold"):
        math_grader.match("2", "???")
    copy = pickle.loads(pickle.dumps(math_grader))
    assert copy.timeout_s == math_grader.timeout_s
