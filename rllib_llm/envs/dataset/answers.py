"""Grading of answers to the tasks of a data file."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rllib_llm.envs.dataset.dataset_rows import DatasetRow, RowError
from rllib_llm.envs.parsing import last_match
from rllib_llm.errors import ConfigError, EnvContractError, did_you_mean
from rllib_llm.graders.json_text import json_problem, read_json
from rllib_llm.graders.math_answers import MathGrader
from rllib_llm.graders.query_results import values_match
from rllib_llm.graders.short_answers import (
    best_f1,
    exact_match,
    number_match,
    read_number,
)
from rllib_llm.graders.unit_tests import Case, run_tests
from rllib_llm.imports import import_object
from rllib_llm.sandbox import shared_sandbox
from rllib_llm.schema import is_number, show

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?%?")
_FENCED = re.compile(r"```(?:python|json)?[ \t]*\n((?:(?!```).)*)```", re.DOTALL)
_END_OF_SOLUTION = "####"  # GSM8K writes the number after it


@dataclasses.dataclass(frozen=True, slots=True)
class Grader:
    """A way to compare answers with the right one.

    Attributes:
        rate: Reward in [0, 1] of an answer to a row's task; 1 is right.
        write: The right answer as a model would write it; raises RowError if the row's
            answer has another form than this grader needs. None: it cannot be written,
            so that only a column of demonstrations can be imitated.
    """

    rate: Callable[[str, DatasetRow], float]
    write: Callable[[Any], str | None]


def make_grader(name: str) -> Grader:
    """Return a grader by its name, or ``"module:function"`` of the user.

    Such a function receives the answer's text and the row as a dictionary, and returns
    the reward: True, False or a number, where 1 or more is right.

    Raises:
        ConfigError: The grader does not exist.
        MissingExtraError: ``math`` without its extra.
    """
    if name in _GRADERS:
        if name == "math":
            _math_grader()
        return _GRADERS[name]
    if ":" in name:
        return _imported(name)
    raise ConfigError(
        f"grader={show(name, 60)} is unknown. {did_you_mean(name, _GRADERS)} "
        "Or give 'module:function'."
    )


def _imported(name: str) -> Grader:
    function = import_object(name, "grader")
    if not callable(function):
        raise ConfigError(f"grader={name!r} must be a function.")

    def rate(answer: str, row: DatasetRow) -> float:
        reward = function(answer, dict(row.values))
        if not isinstance(reward, bool) and not is_number(reward):
            raise EnvContractError(
                f"grader={name!r} returned {show(reward, 60)}; it must return True, "
                "False or a finite number."
            )
        return float(reward)

    return Grader(rate, lambda gold: gold if isinstance(gold, str) else None)


def _texts(gold: Any) -> list[str]:
    """Return the right answers; a list holds alternatives."""
    golds = gold if isinstance(gold, list) else [gold]
    texts = [each if isinstance(each, str) else str(each) for each in golds]
    if not texts or any(isinstance(g, bool | list | dict | None) for g in golds):
        raise RowError(f"answer={show(gold, 40)} must be a text, or a list of texts.")
    if any(not text.strip() for text in texts):
        raise RowError(f"answer={show(gold, 40)} must not be blank.")
    return texts


def _number(gold: Any) -> str:
    text = _texts(gold)[0].rpartition(_END_OF_SOLUTION)[2].strip()
    if read_number(text) is None:
        raise RowError(
            f"answer={show(gold, 40)} must be a number, or end with '#### <number>'."
        )
    return text


def _rate_number(answer: str, row: DatasetRow) -> float:
    """Compare the answer, or the last number in it, with the right number."""
    if read_number(answer) is None:
        match = last_match(_NUMBER, answer)
        answer = match[0] if match else ""
    return float(number_match(answer, _number(row.answer)))


@lru_cache(maxsize=1)
def _math_grader() -> MathGrader:
    """Return the worker that all environments of the process share."""
    return MathGrader()


def _rate_math(answer: str, row: DatasetRow) -> float:
    gold = _texts(row.answer)[0]
    return float(_math_grader().match(_as_latex(answer), _as_latex(gold)))


def _as_latex(text: str) -> str:
    marked = "$" in text or "\\boxed" in text or read_number(text) is not None
    return text if marked else f"${text}$"


def _json_gold(gold: Any) -> Any:
    try:
        return read_json(gold) if isinstance(gold, str) else gold
    except ValueError as error:
        raise RowError(f"answer={show(gold, 40)} is not JSON: {error}") from None


def _rate_json(answer: str, row: DatasetRow) -> float:
    try:
        given = read_json(_unfenced(answer))
    except ValueError:
        return 0.0
    return float(values_match(given, _json_gold(row.answer)))


def _schema(gold: Any) -> dict[str, Any]:
    schema = _json_gold(gold)
    if not isinstance(schema, dict):
        raise RowError(f"answer={show(gold, 40)} must be a JSON Schema (an object).")
    return schema


def _rate_schema(answer: str, row: DatasetRow) -> float:
    return float(json_problem(_unfenced(answer), _schema(row.answer)) is None)


def _cases(gold: Any) -> tuple[str, list[Case]]:
    tests = _json_gold(gold)
    try:
        name, given = tests["function"], tests["cases"]
        cases = [Case(tuple(c["arguments"]), c["result"]) for c in given]
    except (TypeError, KeyError):
        cases = []
    if not cases or not isinstance(name, str) or not name.isidentifier():
        raise RowError(
            f"answer={show(gold, 60)} must be an object with 'function' (a name) and "
            "'cases', a list of objects with 'arguments' (a list) and 'result'."
        )
    return name, cases


def _rate_tests(answer: str, row: DatasetRow) -> float:
    """Return the share of tests that the function passes, in the sandbox."""
    name, cases = _cases(row.answer)
    code = _unfenced(answer)
    reports = run_tests(code, name, cases, shared_sandbox("fork_server"))
    return math.fsum(report.passed for report in reports) / len(reports)


def _unfenced(text: str) -> str:
    """Return the content of the last fenced block, or the text."""
    match = last_match(_FENCED, text)
    return match[1] if match else text


def _unwritten(check: Callable[[Any], object]) -> Callable[[Any], None]:
    def write(gold: Any) -> None:
        check(gold)

    return write


_GRADERS: dict[str, Grader] = {
    "exact": Grader(
        lambda answer, row: float(exact_match(answer, _texts(row.answer))),
        lambda gold: _texts(gold)[0],
    ),
    "f1": Grader(
        lambda answer, row: best_f1(answer, _texts(row.answer)),
        lambda gold: _texts(gold)[0],
    ),
    "number": Grader(_rate_number, _number),
    "math": Grader(_rate_math, lambda gold: _texts(gold)[0]),
    "json": Grader(_rate_json, lambda gold: json.dumps(_json_gold(gold))),
    "json_schema": Grader(_rate_schema, _unwritten(_schema)),
    "tests": Grader(_rate_tests, _unwritten(_cases)),
}
GRADERS = tuple(_GRADERS)
