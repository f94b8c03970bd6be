"""Functions as learnable text: operations, checks in the sandbox, roll-back, stop."""

from __future__ import annotations

import json

import pytest
from component_helpers import trajectory

from rllib_llm.assistants.function_pool import function_pool
from rllib_llm.assistants.questions import Question
from rllib_llm.components.registry import bind
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import Task
from rllib_llm.envs import make_env
from rllib_llm.errors import ConfigError
from rllib_llm.prompt_texts.function_operations import (
    FunctionOperation,
    read_function_operations,
)
from rllib_llm.sandbox import shared_sandbox
from rllib_llm.sandbox.functions import failed_example, read_function, with_functions

pytestmark = pytest.mark.sandbox


def source(name, body, result):
    lines = [f"def {name}(a, b):", f'    """The {name} of a and b.', ""]
    return "\n".join(
        [*lines, f"    >>> {name}(2, 3)", f"    {result}", '    """', body]
    )


PLUS = source("plus", "    return a + b", 5)
TIMES = source("times", "    return a * b", 6)
WRONG = source("plus", "    return a - b", 5)
OTHER = source("plus", "    return a - b", -1)
BROKEN = PLUS.replace("def plus(a, b):", "def plus(a, b)")


# Functions ----------------------------------------------------------------------------


def test_a_function_is_read_with_its_description_and_examples():
    function = read_function(f"\nimport math\n{PLUS}\n")
    assert (function.name, function.head) == ("plus", "plus(a, b)")
    assert function.summary == "plus(a, b): The plus of a and b."
    assert function.examples == (("plus(2, 3)", "5"),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BROKEN, "no Python"),
        ("x = 1", "one function"),
        (f"{PLUS}\n{TIMES}", "one function"),
        (f"{PLUS}\nprint(1)", "one function"),
        (f"@cache\n{PLUS}", "decorators"),
        ("def f(a):\n    return a", "docstring of f"),
        ("def f(a):\n    '''Same.'''\n    return a", "example"),
        ("def f(a):\n    '''Same.\n\n    >>> f(1)\n    '''\n    return a", "result"),
        ("\x00", "no Python"),
    ],
)
def test_what_defines_no_function_with_an_example_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_function(text)


def test_examples_run_in_the_sandbox():
    sandbox = shared_sandbox()
    assert failed_example(read_function(PLUS), sandbox) is None
    assert failed_example(read_function(WRONG), sandbox) == "plus(2, 3) gave -1, not 5."
    reads = source("plus", "    return open('/etc/passwd').read()", 5)
    assert "PermissionError" in failed_example(read_function(reads), sandbox)
    program = with_functions(
        map(read_function, (PLUS, TIMES)), "print(times(2, plus(1, 2)))"
    )
    assert sandbox.run(program).stdout == "6\n"


def test_programs_of_the_environment_call_functions_that_it_describes():
    body = "    return sum(i * i for i in range(a, b + 1))"
    squares = source("squares", body, 13)
    env = make_env("python_tool-v0", {"level": 3, "digits": 1, "functions": [squares]})
    first, _ = env.reset(seed=0)
    assert first.startswith("squares(a, b): The squares of a and b.\n")
    observed, *_ = env.step("<python>print(squares(1, 3))</python>")
    assert observed == "14"
    env.reset(seed=0, options={"functions": []})
    observed, *_ = env.step("<python>print(squares(1, 3))</python>")
    assert observed == "NameError: name 'squares' is not defined"
    with pytest.raises(ConfigError, match="functions: it is no Python"):
        env.reset(seed=0, options={"functions": [BROKEN]})


# Operations ---------------------------------------------------------------------------


def test_operations_have_sources_that_may_stand_in_fences():
    answer = (
        f"I add one.\nadd_function\n```python\n{PLUS}\n```\n- remove_function(times)\n"
        f"REVISE_FUNCTION:\n{TIMES}"
    )
    assert read_function_operations(answer) == [
        FunctionOperation("add", source=PLUS),
        FunctionOperation("remove", "times"),
        FunctionOperation("revise", source=TIMES),
    ]
    assert read_function_operations("TERMINATE") == []


# The set ------------------------------------------------------------------------------


def functions(**settings):
    return bind("prompt_text", {"name": "functions", "of": "w", **settings}).call


def table(mean):
    """Ten episodes of one turn, of which a share of `mean` is solved."""
    return TurnTable(
        [trajectory(task=g, rewards=(float(g < 10 * mean),)) for g in range(10)]
    )


def step(of, mean, *answers):
    asked = of.asked(table(mean))
    return asked, of.observe(table(mean), list(answers) if asked else [])


def sources_of(text_source):
    return [read_function(s).name for s in text_source.options["functions"]]


def test_a_set_is_tried_and_rolled_back_if_it_is_worse():
    of = functions()
    _, numbers = step(of, 0.5, f"add_function\n{PLUS}")
    assert numbers["num_added"] == 1 and numbers["best_value"] == 0.5
    task = of.assign(Task(0, 0, 0, {"level": 1}), 0)
    assert task.options["level"] == 1 and task.options["functions"] == [PLUS]
    assert sources_of(of.shared()) == []  # not known to help
    _, numbers = step(of, 0.7, f"add_function\n{TIMES}\nrevise_function\n{OTHER}")
    assert numbers["num_rolled_back"] == 0 and numbers["num_updated"] == 1
    assert of.shared().options["functions"] == [PLUS]
    assert of.assign(task, 0).options["functions"] == [OTHER, TIMES]
    (asked,), numbers = step(of, 0.6, "remove_function plus")
    # The question shows what is left after the roll-back, and what was rolled back.
    assert asked.texts[0] == PLUS and numbers["num_rolled_back"] == 1
    assert [t.splitlines()[0] for t in asked.texts[1:]] == [
        "# Rolled back: mean return 0.6, not 0.7."
    ] * 2
    assert [t.partition("\n")[2] for t in asked.texts[1:]] == [OTHER, TIMES]
    # Its answer edits the kept set.
    assert numbers["num_deleted"] == 1 and not of.tried and sources_of(of.shared())
    step(of, 0.7)
    assert sources_of(of.shared()) == []  # not worse


def test_what_fails_its_checks_is_never_run_by_the_agent():
    of = functions(functions=[TIMES], size=2, max_chars=150)
    wrong = PLUS.replace("5", "6")
    answer = "\n".join(
        f"add_function\n{text}"
        for text in (BROKEN, wrong, TIMES, PLUS + " " + "#" * 99)
    )
    _, numbers = step(of, 0.5, answer, f"revise_function\n{PLUS}\nremove_function x")
    assert numbers["num_refused"] == 6 and numbers["num_texts"] == 1
    reasons = [text.splitlines()[0] for text in of.failed]
    for reason, words in zip(
        reasons,
        ("no Python", "gave 5", "is a function", "longer", "no func"),
        strict=True,
    ):
        assert words in reason
    step(of, 0.5, f"add_function\n{PLUS}", f"add_function\n{source('third', '', 1)}")
    assert sources_of(of.assign(Task(0, 0, 0), 0).prompt_text) == ["plus", "times"]


def test_the_value_of_an_unchanged_set_is_the_mean_of_its_evaluations():
    of = functions()
    for mean in (0.5, 0.2, 0.2):
        step(of, mean)
    assert of.value == pytest.approx(0.3) and of.fruitless == 2


def test_the_search_stops_after_iterations_without_a_gain():
    of = functions(patience=3)
    step(of, 0.5, f"add_function\n{PLUS}")
    step(of, 0.6, f"add_function\n{TIMES}")
    assert of.fruitless == 0
    counts = [len(step(of, mean)[0]) for mean in (0.6, 0.4, 0.4, 0.9, 0.9)]
    assert counts == [1, 1, 0, 0, 0]
    assert sources_of(of.shared()) == ["plus", "times"]


def test_a_question_has_failed_and_solved_episodes():
    (asked,) = functions(episodes=4).asked(table(0.9))
    assert [t.is_solved for t in asked.trajectories] == [False, True, True, True]
    (asked,) = functions(episodes=4).asked(table(0.3))
    assert [t.is_solved for t in asked.trajectories] == [False, False, True, True]


def test_a_search_continues_from_its_state():
    of, other = functions(), functions()
    step(of, 0.5, f"add_function\n{PLUS}\nadd_function\n{BROKEN}")
    other.set_state(json.loads(json.dumps(of.get_state())))
    for each in (of, other):
        step(each, 0.4, f"add_function\n{TIMES}")
    assert other.get_state() == of.get_state() and of.tried.keys() == {"times"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"functions": [WRONG]}, "gave -1, not 5"),
        ({"patience": 0}, "patience=0"),
        ({"sandbox": "none"}, "none"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        functions(**settings)


# The script ---------------------------------------------------------------------------


def question(*texts, reply="print(plus(1, 2))", seed=0):
    one = trajectory(observations=["the plus of 1 and 2"], completions=[reply])
    return Question((), (), 0, seed, texts=texts, trajectories=(one,))


def test_the_script_adds_revises_and_removes():
    pool = [PLUS, TIMES, OTHER]
    assert function_pool(question(), candidates=[TIMES]) == f"add_function\n{TIMES}"
    answer = function_pool(question(WRONG), candidates=[PLUS, TIMES])
    assert answer == f"revise_function\n{PLUS}"
    answer = function_pool(question(TIMES, f"# Refused: why\n{PLUS}"), candidates=pool)
    assert answer == f"remove_function times\nadd_function\n{OTHER}"
    answer = function_pool(question(*pool[::2], f"# Refused\n{TIMES}"), candidates=pool)
    assert answer == ""
    with pytest.raises(ConfigError, match=r"parse\.text"):
        function_pool(Question((), (), 0, 0), candidates=pool)
