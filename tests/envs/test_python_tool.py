"""python_tool: questions, programs that really run, answers."""

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.python_tool.questions import LEVELS, Draw
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import ConfigError
from rllib_llm.sandbox import Sandbox, SandboxError, shared_sandbox, support

pytestmark = pytest.mark.sandbox
FAMILIES = [family for families in LEVELS.values() for family in families]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_programs_print_the_answers_computed_apart(family):
    rng = np.random.default_rng(0)
    for digits in (1, 2, 4):
        for _ in range(4):
            question = family(Draw(rng, digits))
            result = shared_sandbox().run(question.program)
            assert result.stdout == f"{question.answer}\n", question
            assert all(str(number) in question.text for number in question.numbers)


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_every_level(level):
    env = make_env("python_tool-v0", {"level": level, "digits": 3})
    for seed in range(30):
        transcript = play(env, seed, expert_policy)
        assert (transcript.success, len(transcript.actions)) == (True, 2)
        assert 0.0 <= sum(play(env, seed, random_policy).rewards) <= 1.0


def test_outputs_of_programs_are_observed():
    env = make_env("python_tool-v0", {"max_turns": 20})
    env.reset(seed=0)

    def observed(program):
        text, reward, *_, info = env.step(f"<python>{program}</python>")
        assert (reward, info["tool"]) == (0.0, "python")
        return text, info["tool_error"]

    assert observed("\nprint(6 * 7)\n") == ("42", False)
    assert observed("x = 1") == ("It printed nothing.", False)
    assert observed("print(1)\n1 / 0") == (
        "1\nZeroDivisionError: division by zero",
        True,
    )
    assert observed("print(x)") == ("NameError: name 'x' is not defined", True)
    assert observed("while True: pass") == ("It took too long.", True)
    assert observed("x = 'a' * 10 ** 10") == ("It took too much memory.", True)
    assert observed("import os; os.abort()") == ("It crashed.", True)
    assert observed("print('a' * 300)") == ("a" * 200 + "...", False)
    text, is_error = observed("while True: print('ab')")
    assert is_error
    assert text.endswith("...\nIt printed too much.")
    text, is_error = observed("open('/etc/passwd')")
    assert (text[:15], is_error) == ("PermissionError", True)
    *_, info = env.step("nothing")
    assert (info["tool"], info["invalid_action"]) == (None, True)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("{0}", 1), (" {0}.0 ", 1), ("{0:,}", 1), ("{0}1", 0), ("x", 0), ("{0} {0}", 0)],
)
def test_answers_are_numbers(answer, reward):
    env = make_env("python_tool-v0")
    for seed in range(10):
        env.reset(seed=seed)
        text = f"<answer>{answer.format(env.question.answer)}</answer>"
        _, granted, terminated, _, info = env.step(text)
        assert (granted, terminated, info["success"]) == (reward, True, bool(reward))
        assert info["gold_answers"] == [str(env.question.answer)]


def test_the_last_action_counts_and_may_span_lines():
    env = make_env("python_tool-v0")
    env.reset(seed=0)
    text = "<answer>1</answer> No. <python>a = 3\nprint(a)</python>"
    assert env.step(text)[0] == "3"
    assert env.step("<python> </python>")[4]["invalid_action"]


def test_a_failing_sandbox_is_no_answer(monkeypatch):
    env = make_env("python_tool-v0")
    env.reset(seed=0)

    def fail(self, *args, **settings):
        raise SandboxError("gone")

    monkeypatch.setattr(Sandbox, "run", fail)
    with pytest.raises(SandboxError):
        env.step("<python>print(1)</python>")


def test_platforms_without_isolation_are_refused_at_the_start(monkeypatch):
    shared_sandbox.cache_clear()
    monkeypatch.setattr(support, "probe", lambda: {"missing": ["Landlock"]})
    with pytest.raises(ConfigError, match="cannot isolate programs"):
        make_env("python_tool-v0").reset(seed=0)


def test_monty_is_an_option():
    pytest.importorskip("pydantic_monty")
    env = make_env("python_tool-v0", {"sandbox": "monty"})
    assert play(env, 0, expert_policy).success


@pytest.mark.parametrize(
    "config", [{"level": 0}, {"level": 4}, {"digits": 0}, {"sandbox": "none"}]
)
def test_impossible_options_are_refused(config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        make_env("python_tool-v0", config).reset(seed=0)


def test_the_expert_calls_the_function_of_the_family():
    def source(name):
        doc = f'    """As {name}.\n\n    >>> {name}(1, 2)\n    5\n    """\n'
        return f"def {name}(a, b):\n{doc}    return sum(i * i for i in range(a, b + 1))"

    options = {"level": 3, "digits": 1, "families": ["squares"]}
    functions = [source("f"), source("squares")]
    env = make_env("python_tool-v0", {**options, "functions": functions})
    for seed in range(20):
        first, _ = env.reset(seed=seed)
        assert first.startswith("f(a, b): As f.\nsquares(a, b): As squares.\nWhat is")
        assert "sum of the squares" in first
        program = env.expert_action(np.random.default_rng(0))
        assert program == f"<python>print({env.question.call})</python>"
        assert env.step(program)[0] == str(env.question.answer)
    env.reset(seed=0, options={"functions": [source("f")]})
    assert "squares(" not in env.expert_action(np.random.default_rng(0))
    with pytest.raises(ConfigError, match="families"):
        env.reset(seed=0, options={"families": ["boxes"]})
