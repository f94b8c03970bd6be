"""code: families against their solutions, what failing tests say, rewards."""

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.code_functions.families import FAMILIES, NUM_LEVELS, draw_task
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError
from rllib_llm.graders import run_tests
from rllib_llm.sandbox import shared_sandbox

pytestmark = pytest.mark.sandbox


def test_solutions_match_independent_results():
    rng, seen = np.random.default_rng(0), set()
    for level in range(1, NUM_LEVELS + 1):
        for _ in range(60):
            task = draw_task(rng, level, 20)
            seen.add(task.asked.split(" ")[0] + task.solution.split("\n")[1][:14])
            reports = run_tests(task.solution, "f", task.cases, shared_sandbox())
            failed = [r for r in reports if not r.passed]
            assert not failed, (task.solution, failed[0])
    assert len(seen) >= len(FAMILIES)


def test_visible_and_hidden_tests_are_distinct():
    for seed in range(30):
        for level in range(1, NUM_LEVELS + 1):
            cases = draw_task(np.random.default_rng(seed), level, 30).cases
            assert len({repr(case.arguments) for case in cases}) == 30


def test_copying_the_visible_results_does_not_help():
    env = make_env("code-v0")
    for seed in range(10):
        env.reset(seed=seed)
        known = {repr(c.arguments[0]): c.result for c in env.task.cases[:2]}
        cheat = f"def f(x):\n    return {known!r}.get(repr(x), 0)"
        text, reward, terminated, _, info = env.step(f"<python>{cheat}</python>")
        assert (text, reward, terminated) == ("Hidden tests failed.", 0.0, True)
        assert info["success"] is False


@pytest.fixture
def env():
    """The seed's task: numbers times 7, without those less than 0."""
    made = make_env("code-v0", {"max_turns": 10, "partial": True})
    made.reset(seed=5)
    return made


def say(env, code):
    text, reward, terminated, _, info = env.step(f"<python>{code}</python>")
    return text, reward, terminated, info


def test_failing_visible_tests_are_shown_and_allow_a_retry(env):
    call = f"f({env.task.cases[0].arguments[0]!r})"
    wanted = env.task.cases[0].result
    text, reward, terminated, info = say(env, "def f(numbers):\n    return 3")
    assert text == f"{call} returned 3, not {wanted!r}. Try again."
    assert (reward, terminated, info["tool_error"]) == (0.0, False, True)
    text = say(env, "def f(numbers):\n    return numbers + 1")[0]
    assert text.startswith(f"{call} failed: TypeError: can only concatenate list")
    assert say(env, "def g(): pass")[0].endswith(
        "failed: NameError: name 'f' is not defined. Try again."
    )
    assert say(env, "def f(numbers):\n    while True: pass")[0] == (
        f"{call} failed: took too long. Try again."
    )
    assert len(say(env, "def f(n):\n    return 'x' * 900")[0]) < 300
    text, reward, terminated, info = say(env, env.task.solution)
    assert (text, reward, terminated) == ("All tests passed.", 1.0, True)
    assert (info["success"], info["metrics"]) == (True, {"hidden_tests_passed": 1.0})


def test_partial_rewards_are_the_share_of_hidden_tests(env):
    passing = [repr(case.arguments[0]) for case in env.task.cases[:5]]  # 3 of 6 hidden
    body = env.task.solution.replace("def f", "def g")
    code = f"{body}\ndef f(x):\n    return g(x) if repr(x) in {passing!r} else 'no'"
    text, reward, terminated, info = say(env, code)
    assert (text, reward, terminated) == ("Hidden tests failed.", 0.5, True)
    assert (info["success"], info["metrics"]) == (False, {"hidden_tests_passed": 0.5})


@pytest.mark.parametrize("level", range(1, NUM_LEVELS + 1))
def test_the_expert_solves_every_level(level):
    env = make_env("code-v0", {"level": level})
    for seed in range(40):
        options = {"split": ("train", "test")[seed % 2]}
        assert play(env, seed, expert_policy, options=options).success


@pytest.mark.parametrize(
    "config",
    [{"level": 4}, {"visible": 0}, {"hidden": 51}, {"partial": 1}, {"sandbox": "no"}],
)
def test_impossible_options_are_refused(config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        make_env("code-v0", config).reset(seed=0)
