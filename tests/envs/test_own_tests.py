"""function_and_test: tests that are read, their truth, infos and retries."""

import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.code_functions.own_tests import read_test
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError
from rllib_llm.graders import Case


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(3) == 5", Case((3,), 5)),
        (
            " f([1, -2], 'a') == {'a': [None, True, 1.5]} ",
            Case(([1, -2], "a"), {"a": [None, True, 1.5]}),
        ),
        ("f((1, 2)) == (3,)", Case(([1, 2],), [3])),
        ("f() == 1", Case((), 1)),
        ("f('a1b', 1e3) == '2or'", Case(("a1b", 1000.0), "2or")),
        *(
            (text, None)
            for text in [
                *("f(3) == 5 == 5", "f(3) != 5", "g(3) == 5", "5 == f(3)", "f(3)"),
                *("f(n=3) == 5", "f(*[3]) == 5", "f(x) == 5", "f(3) == 2 + 3", ""),
                *(
                    "f({1}) == 5",
                    "f(1e999) == 5",
                    "f(b'a') == 5",
                    "f(1or 2) == 5",
                    "f('\\d') == 5",
                ),
                *("f(" + "[" * 90 + "]" * 90 + ") == 1", "f(" + "1" * 300 + ") == 1"),
            ]
        ),
    ],
)
def test_a_test_is_a_call_and_a_literal(text, expected):
    assert read_test(text) == expected


@pytest.fixture
def env():
    """The seed's task: the numbers times 7, without those less than 8."""
    made = make_env("function_and_test-v0", {"checked": 1.0})
    made.reset(seed=0)
    return made


@pytest.mark.sandbox
def test_right_and_wrong_functions_and_tests(env):
    step = env.step("<python>def f(numbers): return []</python>")
    assert step[1] == 0.0 and not step[2]
    assert step[4]["checked"] is False
    assert step[4]["program"] == "def f(numbers): return []"
    assert step[0].startswith("Write a test of f(numbers) that returns the numbers")
    _, reward, terminated, _, info = env.step("<test>f([9, 1]) == [63]</test>")
    assert (reward, terminated, info["success"]) == (0.5, True, False)
    assert info["test"] == [[[9, 1]], [63]] and info["checked"] is None
    assert info["metrics"] == {"test_right": 1.0}


@pytest.mark.sandbox
@pytest.mark.parametrize("test", ["f([9]) == [9]", "f(9) == [63]", "f() == []"])
def test_a_wrong_test_is_no_failure_of_the_function(env, test):
    env.step(env.expert_action(env.np_random))
    _, reward, _, _, info = env.step(f"<test>{test}</test>")
    assert (reward, info["success"], info["metrics"]) == (
        0.0,
        True,
        {"test_right": 0.0},
    )


@pytest.mark.sandbox
def test_invalid_turns_are_asked_again(env):
    first, _ = env.reset(seed=0)
    assert env.step("<test>f([9]) == [63]</test>")[0] == first
    second = env.step(env.expert_action(env.np_random))[0]
    text, _, terminated, _, info = env.step("<python>def f(n): return n</python>")
    assert (text, terminated, info["test"]) == (second, False, None)


@pytest.mark.sandbox
def test_the_share_of_checked_tasks():
    env = make_env("function_and_test-v0", {"checked": 0.25})
    checked = 0
    for seed in range(200):
        env.reset(seed=seed)
        checked += env.unwrapped.is_checked
    assert 30 < checked < 70
    assert not make_env("function_and_test-v0", {"checked": 0.0}).reset(seed=0)[1]


@pytest.mark.sandbox
@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_expert_solves_every_level(level):
    env = make_env("function_and_test-v0", {"level": level})
    for seed in range(30):
        played = play(env, seed, expert_policy)
        assert played.success and sum(played.rewards) == 1.0


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "config", [{"level": 4}, {"hidden": 0}, {"checked": 1.5}, {"sandbox": "no"}]
)
def test_impossible_options_are_refused(config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        make_env("function_and_test-v0", config).reset(seed=0)
