"""Second try: rewards of answers and checks, and which tasks it accepts."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env
from rllib_llm.errors import ConfigError

ENDING = "Say right or wrong."


def game(**options):
    env = MultiAgentAdapter(make_env("second_try-v0", options))
    step = env.reset(seed=4)
    env.question = step.observations["solver_0"]
    left, right = (int(n) for n in env.question.strip("?").split()[2::2])
    env.right, env.wrong = f"<answer>{left + right}</answer>", "<answer>7</answer>"
    return env


@pytest.mark.parametrize("is_right", [True, False])
def test_the_word_right_ends_the_game(is_right):
    env = game()
    answer = env.right if is_right else env.wrong
    step = env.step({"solver_0": answer})
    assert dict(step.rewards).get("solver_0", 0.0) == float(is_right)
    assert step.observations == {"checker_0": f"{env.question}\n{answer}\n{ENDING}"}
    step = env.step({"checker_0": "It is right."})
    assert step.is_over and step.success is is_right
    assert dict(step.rewards).get("checker_0", 0.0) == float(is_right)
    assert step.metrics == {"first_right": float(is_right), "tries": 1.0}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_the_word_wrong_gives_another_try(first, second):
    env = game(bonus=0.5)
    answers = {True: env.right, False: env.wrong}
    env.step({"solver_0": answers[first]})
    step = env.step({"checker_0": "right? No: wrong"})
    assert dict(step.rewards).get("checker_0", 0.0) == float(not first)
    assert step.observations == {"solver_0": "That is wrong. Try again."}
    step = env.step({"solver_0": answers[second]})
    assert step.is_over and step.success is second
    bonus = 0.5 * (second and not first)
    assert dict(step.rewards).get("solver_0", 0.0) == float(second) + bonus
    assert step.metrics == {"first_right": float(first), "tries": 2.0}


def test_the_checkers_expert_tells_the_truth():
    for is_right, word in ((True, "right"), (False, "wrong")):
        env = game()
        env.step({"solver_0": env.right if is_right else env.wrong})
        rng = np.random.default_rng(0)
        assert env.unwrapped.expert_action("checker_0", rng) == word


@pytest.mark.parametrize("bonus", [-1.0, -0.5])
def test_a_bonus_is_not_negative(bonus):
    with pytest.raises(ConfigError, match="must be >= 0, e.g. 0.5"):
        game(bonus=bonus)


def test_a_task_of_several_turns_is_refused():
    env = MultiAgentAdapter(make_env("second_try-v0", {"task": "guess_number-v0"}))
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="'guess_number-v0' goes on after an answer"):
        text = env.unwrapped.random_action("solver_0", np.random.default_rng(0))
        env.step({"solver_0": text})


def test_a_game_of_several_agents_is_refused():
    with pytest.raises(ConfigError, match="is a multi-agent game already"):
        make_env("second_try-v0", {"task": "team-v0"}).reset(seed=0)
