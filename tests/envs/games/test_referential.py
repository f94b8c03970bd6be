"""Referential game: observations, and the capacity of messages."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env
from rllib_llm.envs.one_player import OnePlayer
from rllib_llm.envs.transcript import expert_policy, play


def test_listener_observes_words_but_not_the_target():
    env = make_env("referential-v0")
    env.reset(seed=0)
    env.target, env.objects = (0, 0), [(0, 0), (1, 1), (2, 2)]
    env.shown = [(1, 1), (0, 0), (2, 2)]
    assert env.prompt_for("speaker_0") == (
        "Target: red star. Others: blue moon, gold ring. "
        "Say up to 2 of: ba de gi ko lu ma"
    )
    env.step("Hm. de ba")
    assert env.observe("listener_0")["text"] == (
        "speaker_0 says de ba. 1 blue moon, 2 red star, 3 gold ring. Pick one."
    )
    env.step("pick 2")
    assert env.rewards == {"speaker_0": 1.0, "listener_0": 1.0}


def test_the_target_stands_anywhere_among_the_candidates():
    env, places = make_env("referential-v0"), []
    for seed in range(300):
        env.reset(seed=seed)
        assert sorted(env.shown) == sorted(env.objects)
        places.append(env.shown.index(env.target))
    assert np.bincount(places).min() > 70


@pytest.mark.parametrize(
    ("options", "success"),
    [
        ({}, (1.0, 1.0)),
        ({"values": 6, "words": 12, "candidates": 6}, (1.0, 1.0)),
        ({"values": 4, "words": 4}, (1.0, 1.0)),  # words mean two things by place
        ({"length": 1}, (0.6, 0.95)),  # the shape stays unsaid
        ({"words": 2}, (0.6, 0.99)),  # too few words
    ],
)
def test_code_capacity_bounds_the_experts(options, success):
    env = OnePlayer(MultiAgentAdapter(make_env("referential-v0", options)))
    won = [play(env, seed, expert_policy).success for seed in range(300)]
    low, high = success
    assert low <= np.mean(won) <= high


@pytest.mark.parametrize(
    ("agent", "text", "action"),
    [
        ("speaker_0", "ba", ("ba",)),
        ("speaker_0", "BA, de! gi", ("de", "gi")),
        ("speaker_0", "zu xx", None),
        ("speaker_0", "banana", None),
        ("listener_0", "pick 1, no, pick 3", 3),
        ("listener_0", "pick 4", None),
        ("listener_0", "pick 0", None),
        ("listener_0", "ba", None),
    ],
)
def test_parsing(agent, text, action):
    env = make_env("referential-v0")
    env.reset(seed=0)
    assert env.parse(agent, text) == action
