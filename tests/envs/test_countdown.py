"""Countdown: instances, feedback, and the solver against plain enumeration."""

import contextlib
import itertools
from fractions import Fraction

import numpy as np
import pytest

from rllib_llm.envs.countdown import Countdown, solutions
from rllib_llm.envs.transcript import play


def _values(numbers):
    """All values of three numbers: orders, operations, and both bracketings."""
    operations = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b,
    }
    found = set()
    for a, b, c in itertools.permutations(map(Fraction, numbers)):
        for f, g in itertools.product(operations.values(), repeat=2):
            with contextlib.suppress(ZeroDivisionError):
                found.add(g(f(a, b), c))
            with contextlib.suppress(ZeroDivisionError):
                found.add(f(a, g(b, c)))
    return found


def test_every_instance_is_solvable():
    env = Countdown()
    for seed in range(200):
        env.reset(seed=seed)
        assert env.target in _values(env.numbers)
        assert 1 <= env.target <= 50
        assert all(1 <= n <= 10 for n in env.numbers)


def test_the_solver_finds_exactly_the_reachable_targets():
    rng = np.random.default_rng(0)
    for _ in range(12):
        numbers = [int(n) for n in rng.integers(0, 8, size=3)]
        reachable = _values(numbers)
        for target in range(-10, 40):
            assert any(solutions(numbers, target)) == (target in reachable)


def test_every_solution_is_graded_as_correct():
    env = Countdown()
    for seed in range(20):
        env.reset(seed=seed)
        for solution in itertools.islice(solutions(env.numbers, env.target), 20):
            env.turn = 0
            _, reward, terminated, _, info = env.step(f"answer: {solution}")
            assert (reward, terminated, info["success"]) == (1.0, True, True)


@pytest.fixture
def env():
    """An instance with the numbers 3, 4, 1 and the target 14."""
    env = Countdown({"max_turns": 100})
    env.reset(seed=0)
    env.numbers, env.target = [3, 4, 1], 14
    return env


@pytest.mark.parametrize(
    ("answer", "feedback"),
    [
        ("answer: 3*4+1", "3 * 4 + 1 = 13, not 14. Try again."),
        ("ANSWER: 3 / 4 + 1", "3 / 4 + 1 = 7/4, not 14. Try again."),
        ("answer: 14", "That uses 14, not 3 4 1. Try again."),
        ("answer: 3*4+1+1", "That uses 1 1 3 4, not 3 4 1. Try again."),
        ("answer: 4/(3-1-1-1)", "That uses 1 1 1 3 4, not 3 4 1. Try again."),
        ("answer: 3*4", "That uses 3 4, not 3 4 1. Try again."),
        ("answer: 3/(4-4)", "That uses 3 4 4, not 3 4 1. Try again."),
    ],
)
def test_wrong_answers_are_explained(env, answer, feedback):
    text, reward, terminated, _, info = env.step(answer)
    assert text == feedback
    assert reward == 0.0
    assert not terminated
    assert not info["invalid_action"]


def test_division_by_zero_is_a_wrong_answer(env):
    env.numbers = [3, 3, 1]
    text, reward, _, _, info = env.step("answer: 1/(3-3)")
    assert text == "1 / (3 - 3) divides by zero. Try again."
    assert reward == 0.0
    assert not info["invalid_action"]


@pytest.mark.parametrize(
    "text",
    [
        "3*4+1",
        "answer 3*4+1",
        "answer:",
        "answer: fourteen",
        "answer: 3*4+1 = 13",
        "answer: 3**4",
        "answer: 3//4",
        "answer: 3*4+1\nanswer: x",
    ],
)
def test_other_formats_are_invalid_actions(env, text):
    observation, _, _, _, info = env.step(text)
    assert info["invalid_action"]
    assert observation == env.format_hint


def test_the_last_answer_counts(env):
    env.target = 13
    _, reward, *_ = env.step("Perhaps answer: 3+4+1? No.\nanswer: 3*4+1")
    assert reward == 1.0


def test_exactness_beyond_floats(env):
    env.numbers, env.target = [1, 3, 3], 1
    assert env.step("answer: 1/3*3")[1] == 1.0
    # As a float this is 1.0, too.
    env.numbers = [1, 1, 999_999, 999_999, 999_999]
    assert env.step("answer: 1 + 1/999999/999999/999999")[1] == 0.0
    env.numbers, env.target = [8, 3, 8, 3], 24
    assert env.step("answer: 8/(3-8/3)")[1] == 1.0


def test_more_numbers_and_turns():
    env = Countdown({"numbers": 5, "max_number": 20, "max_target": 200})
    transcript = play(env, 5, lambda env, rng: "answer: 1")
    assert len(transcript.actions) == 3
    assert transcript.truncated
    assert transcript.success is False
    env.reset(seed=5)
    assert env.step(env.expert_action(np.random.default_rng(0)))[1] == 1.0
