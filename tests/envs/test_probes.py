"""The probes have the optimum they claim."""

import numpy as np
import pytest

from rllib_llm.envs.probes import BanditProbe, CopyProbe, DelayProbe, ToolProbe
from rllib_llm.envs.transcript import expert_policy, play, random_policy


@pytest.mark.parametrize("env_class", [BanditProbe, CopyProbe, DelayProbe])
@pytest.mark.parametrize("words", [3, 4, 8])
def test_random_return_is_one_in_words(env_class, words):
    env = env_class({"words": words})
    returns = [sum(play(env, seed, random_policy).rewards) for seed in range(600)]
    assert np.mean(returns) == pytest.approx(1 / words, abs=0.08)


def test_bandit_rewards_one_word_only():
    env = BanditProbe()
    word_reward = {}
    for word in ("red", "green", "blue", "gold", "white"):
        env.reset(seed=0)
        word_reward[word] = env.step(f"I say {word}!")[1:3]
    assert word_reward.pop("blue") == (1.0, True)
    assert set(word_reward.values()) == {(0.0, True)}


def test_copying_one_of_two_words_earns_half():
    env = CopyProbe()
    env.reset(seed=0)
    text, reward, terminated, _, _ = env.step(env.shown[0])
    assert (text, reward, terminated) == (f"Say {env.shown[1]}", 0.5, False)
    wrong = next(word for word in env.words if word != env.shown[1])
    _, reward, terminated, _, info = env.step(wrong)
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_copy_retry_asks_for_the_same_word():
    env = CopyProbe({"invalid_action": "retry", "max_turns": 3})
    env.reset(seed=0)
    env.step("???")
    assert env.step(env.shown[0])[1] == 0.5
    assert env.step(env.shown[1])[4]["success"] is True


@pytest.mark.parametrize("distance", [1, 3, 12])
def test_delay_probe_rewards_the_first_word_in_the_last_turn(distance):
    env = DelayProbe({"distance": distance})
    for first, later, granted in (("blue", "red", 1.0), ("red", "blue", 0.0)):
        env.reset(seed=0)
        turns = [env.step(first), *(env.step(later) for _ in range(distance))]
        assert [turn[1] for turn in turns] == [0.0] * distance + [granted]
        assert [turn[2] for turn in turns] == [False] * distance + [True]


def test_looking_raises_the_return_of_hidden_words_only():
    returns = {True: [], False: []}
    for seed in range(100):
        env = ToolProbe({"cost": 0.3})
        played = play(env, seed, expert_policy)
        returns[env.needed].append(sum(played.rewards))
        assert played.actions.count("look") == env.needed
    assert set(returns[False]) == {1.0} and set(returns[True]) == {0.7}
    assert 30 < len(returns[True]) < 70


def test_needed_and_needless_looks_are_counted():
    counts = {}
    for hidden in (0.0, 1.0):
        env = ToolProbe({"hidden": hidden})
        env.reset(seed=0)
        rewards = [env.step("look")[1], env.step("I look again")[1]]
        assert rewards == [-0.2, -0.2]
        info = env.step(env.right)[4]
        counts[hidden] = [info["metrics"][f"looks_{k}"] for k in ("needed", "needless")]
    assert counts == {0.0: [0.0, 2.0], 1.0: [1.0, 1.0]}
