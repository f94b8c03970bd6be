"""Graders and rewards score hostile text as wrong: no exception, within the limit."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile_texts import FIXED, hostile_texts, random_texts

from rllib_llm.components.registry import COMPONENTS
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.data.types import Task
from rllib_llm.graders import (
    MathGrader,
    best_f1,
    exact_match,
    json_problem,
    json_text,
    line_worker,
    number_match,
    patterns,
    read_number,
    rows_match,
    set_match,
    unit_tests,
    values_match,
)
from rllib_llm.graders.json_text import JsonGraderError, read_json
from rllib_llm.graders.line_worker import LineWorker
from rllib_llm.rewards.combine import Rewards

TEXTS = hostile_texts(100)
SLACK_S = 3.0  # for a busy machine, and for restarting a worker
BACKTRACKING = r"(a|aa)+$"
SCHEMA = {
    "type": "object",
    "required": ["never"],
    "properties": {"n": {"multipleOf": 0.01}, "never": {"const": 1}},
}
# Settings that reward components need in order to read the answer.
NEEDED = {
    "gate": {"levels": [{"when": "f1", "reward": 1.0}]},
    "outcome": {"key": "score"},
    "overlong": {"longest": 10, "buffer": 5},
    "rubric": {"rules": {"<never>.+</never>": 1.0, r"\d+\.\d+\.never": 1.0}},
    "tiers": {"of": "f1"},
    "well_formed": {"every": r"(\w+ ?)+never"},
}


def graded(grader, *arguments):
    """Return a grader's result, which must arrive within the time limit."""
    began = time.perf_counter()
    found = grader(*arguments)
    limit = max(json_text.TIMEOUT_S, patterns.TIMEOUT_S) + SLACK_S
    assert time.perf_counter() - began < limit, grader
    return found


def test_texts_and_numbers():
    for text in TEXTS:
        assert graded(exact_match, text, "the right answer") is False
        assert graded(best_f1, text, ["quite", "right"]) == 0.0
        assert graded(number_match, text, -271_828) is False
        assert graded(number_match, text, 10**450, 0.0) is False
        found = graded(read_number, text)
        assert found is None or math.isfinite(found)


def test_numbers_are_compared_to_the_last_digit():
    big = 10**30 + 1
    assert number_match("1e30", big)  # within the tolerance
    assert not number_match("1e30", big, tolerance=0.0)
    assert number_match(f"{big}", big, tolerance=0.0)
    assert number_match("1e400", 10**400, tolerance=0.0)
    assert not number_match("1e999999999999999999", 10**400)
    assert number_match("1e-400", 0)
    assert number_match("0.3", "0.30", tolerance=0.0)


def test_rows_sets_and_values():
    for text in TEXTS:
        for given in (text, [text], [[text]], {text: text}, [{text: [text]}]):
            assert graded(rows_match, given, [("right", 1)]) is False
            assert graded(set_match, given, ["right", 1]) is False
            assert graded(values_match, given, ["right", 1.5]) is False


DEEP, SAME = [], []
for _ in range(50_000):
    DEEP, SAME = [DEEP], [SAME]
ODD = [None, 7, 10**400, -(10**5_000), float("inf"), float("nan"), True, DEEP, {"a": 1}]


def test_values_of_all_kinds():
    for given in [*ODD, *([value] for value in ODD), *([[value]] for value in ODD)]:
        for gold in (1.5, [1.5], [[1.5]]):
            assert graded(values_match, given, gold) is False
        assert graded(rows_match, given, [[1.5], ["a"]]) is False
        assert graded(set_match, given, [1.5, "a"]) is False
    assert values_match(DEEP, SAME) and not values_match(DEEP, [SAME])
    assert set_match([[1, {"a": 2.0}]], [(1.0, {"a": 2})])
    assert not set_match([[1, [2]]], [[[1], 2]])
    assert values_match(10**400, 10.0**300 * 1.7, tolerance=1.0)
    assert rows_match([(10**400, 1.0)], [(10**400, 1)])


def test_json_that_cannot_be_valid():
    for text in TEXTS:
        problem = graded(json_problem, text, SCHEMA)
        assert problem and len(problem) < 600
        problem.encode()  # can be shown to the model


def test_json_costs_little_where_the_library_compares_all_pairs():
    items = FIXED["8,000 objects"]
    assert graded(json_problem, items, {"uniqueItems": True}) is None
    twice = items.replace("[", '[{"n":5},')
    found = graded(json_problem, twice, {"uniqueItems": True})
    assert "non-unique" in found
    assert json_problem("[1, true, [1], [true]]", {"uniqueItems": True}) is None
    assert json_problem('[{"a": 1}, {"a": 1.0}]', {"uniqueItems": True})


@pytest.mark.parametrize(
    "text, of, problem",
    [
        ("0.3", 0.1, False),
        ("7", 2, True),
        ("1" + "0" * 400, 0.5, False),
        ("1e308", 1e-5, False),
        ("1e999", 0.5, True),
        ("true", 2, False),
    ],
)
def test_multiples_are_exact(text, of, problem):
    assert bool(json_problem(text, {"multipleOf": of})) is problem


NESTED = {"anyOf": [{"items": {"$ref": "#"}}] * 3, "minItems": 1}


@pytest.mark.parametrize(
    "text, schema",
    [
        ('"' + "a" * 60 + 'b"', {"pattern": BACKTRACKING}),
        ('{"' + "a" * 60 + 'b": 1}', {"patternProperties": {BACKTRACKING: {}}}),
        ("[" * 40 + "]" * 40, NESTED),
    ],
)
def test_schemas_that_take_for_ever_are_cut_off(monkeypatch, text, schema):
    monkeypatch.setattr(json_text, "TIMEOUT_S", 0.5)
    assert "took longer than 0.5 s" in graded(json_problem, text, schema)
    assert json_problem("1", {"type": "integer"}) is None  # from a new worker


def test_limits_hold_in_threads(monkeypatch):
    """One thread's hostile text delays other threads, but does not change results."""
    monkeypatch.setattr(json_text, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(patterns, "TIMEOUT_S", 0.5)
    hang = "a" * 60 + "b"

    def grade(number):
        if number % 4 == 0:
            problem = json_problem(f'"{hang}"', {"pattern": BACKTRACKING})
            return "took longer" in problem and not patterns.has_match(
                BACKTRACKING, hang
            )
        is_right = json_problem(str(number), {"const": number}) is None
        return is_right and patterns.matches(r"(\d+)", f"n{number}") == [str(number)]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(grade, range(16)))


def test_a_worker_is_kept_between_texts():
    json_problem("1", {})
    process = json_text._WORKER.process
    assert all(json_problem(str(n), {"const": n}) is None for n in range(50))
    assert json_text._WORKER.process is process


def test_json_is_read_strictly():
    for text in TEXTS:
        try:
            value = graded(read_json, text)
        except ValueError:
            continue
        repr(value)  # neither too deep nor too long
    with pytest.raises(ValueError, match="no finite number"):
        read_json('{"n": 1e999}')


def forged(line):
    """Return the report of a program that printed ``line`` in place of a result."""
    case = unit_tests.Case((1,), 2)

    class Forger:
        def run(self, program, *, inputs, timeout_s):
            out = f"{inputs['_test_mark']}{line}\n"
            return type("Result", (), {"stdout": out, "stderr": "", "status": "ok"})

    return unit_tests.run_tests("", "f", [case], Forger())[0]


def test_forged_results_of_programs():
    lines = [
        *TEXTS,
        *(f"[true, {t}]" for t in TEXTS),
        *(f"[false, {t}]" for t in TEXTS),
    ]
    for line in lines:
        report = graded(forged, line.replace("\n", " "))
        assert report.passed is False
        assert len(report.error) <= 200
        repr(report)


def trajectory(text, count=2):
    return Trajectory(
        task=Task(group_id=0, rollout=0, seed=0),
        episode=0,
        agent=0,
        agent_id="agent_0",
        module_id="default_policy",
        observations=["?"] * count,
        completions=[text] * count,
        rewards=[0.0] * count,
        steps=[*range(count)],
        num_tokens=[9] * count,
        invalid=[True] * count,
        infos=[
            {
                "gold_answers": ["-271828", "entirely right"],
                "gold_documents": ["entirely right"],
                "gold_queries": ["entirely right"],
                "documents": [text],
                "query": text,
                "tool": None,
                "tool_cost": 0.0,
            }
        ]
        * count,
        metrics={"score": 0.0},
        success=False,
    )


# Without those of models, whose scores have any sign, and those that read no text.
UNREAD = {"scored", "scorer", "asked", "gain", "logp"}


@pytest.mark.parametrize("name", sorted(set(COMPONENTS["reward"]) - UNREAD))
def test_rewards_of_hostile_text_are_zero(name):
    spec = {"name": name, **NEEDED.get(name, {})}
    for text in [*FIXED.values(), *random_texts(30, seed=1)]:
        given = [trajectory(text)]
        graded(Rewards([spec]), given)
        assert given[0].episode_return <= 0.0, text[:50]


def test_answers_between_tags_are_those_of_the_expression():
    expression = re.compile("<answer>(.*?)</answer>", re.DOTALL)
    for text in random_texts(300, seed=2):
        found = patterns.matches("<answer>(.*?)</answer>", text)
        assert found == expression.findall(text)


def test_patterns_that_backtrack_count_as_no_match(monkeypatch, caplog):
    monkeypatch.setattr(patterns, "TIMEOUT_S", 0.5)
    rewards = Rewards([{"name": "exact_match", "answer": r"^((?:a|aa)+)$"}])
    given = [trajectory("a" * 60 + "b")]
    graded(rewards, given)
    assert given[0].episode_return == 0.0
    assert "Rewrite the expression" in caplog.text


ENDS = """
import os, signal
from rllib_llm.graders.line_server import serve

def answer(line):
    if line == "crash\\n":
        os.abort()
    if line == "kill\\n":
        os.kill(os.getpid(), signal.SIGKILL)
    return line.strip()

serve(answer)
"""


@pytest.fixture
def ending_worker(tmp_path, monkeypatch):
    (tmp_path / "ending_worker.py").write_text(ENDS)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    worker = LineWorker("ending_worker", JsonGraderError)
    yield worker
    worker.close()


def test_a_text_that_makes_the_worker_crash_is_wrong_and_a_killed_worker_an_error(
    ending_worker, caplog
):
    assert ending_worker.ask("fine", 5.0) == "fine\n"
    assert ending_worker.ask("crash", 5.0) is None
    assert "SIGABRT" in caplog.text
    with pytest.raises(JsonGraderError, match="ended twice"):  # infrastructure failure
        ending_worker.ask("kill", 5.0)
    assert ending_worker.ask("fine", 5.0) == "fine\n"


def test_an_interrupted_question_leaves_no_answer_behind(ending_worker, monkeypatch):
    assert ending_worker.ask("first", 5.0) == "first\n"

    def interrupt(process, patience_s):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(line_worker, "_line", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ending_worker.ask("second", 5.0)
    assert ending_worker.ask("third", 5.0) == "third\n"


def test_mathematics():
    pytest.importorskip("math_verify")
    grader = MathGrader(timeout_s=2.0)
    assert grader.match("2", "2")
    for text in [*FIXED.values(), *random_texts(10, seed=3)]:
        for given in (text[:1_900], f"${text[:1_900]}$", rf"\boxed{{{text[:1_900]}}}"):
            assert graded(grader.match, given, "-271828") is False
    grader.close()
