"""The probes have the optimum they claim."""

import numpy as np
import pytest

from rllib_llm.envs.probes import BanditProbe, CopyProbe
from rllib_llm.envs.transcript import play, random_policy


@pytest.mark.parametrize("env_class", [BanditProbe, CopyProbe])
@pytest.mark.parametrize("words", [3, 4, 8])
def test_random_return_is_one_in_words(env_class, words):
    env = env_class({"words": words})
    returns = [sum(play(env, seed, random_policy).rewards) for seed in range(600)]
    assert np.mean(returns) == pytest.approx(1 / words, abs=0.08)


def test_only_one_word_of_the_bandit_pays():
    env = BanditProbe()
    pays = {}
    for word in ("red", "green", "blue", "gold", "white"):
        env.reset(seed=0)
        pays[word] = env.step(f"I say {word}!")[1:3]
    assert pays.pop("blue") == (1.0, True)
    assert set(pays.values()) == {(0.0, True)}


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
