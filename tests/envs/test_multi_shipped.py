"""Common checks of every shipped multi-agent game."""

import pathlib
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

from rllib_llm.envs import (
    TEXT_ENVS,
    MultiAgentAdapter,
    MultiAgentTextEnv,
    check_env,
    make_env,
)
from rllib_llm.envs.one_player import OnePlayer, dialogue
from rllib_llm.envs.transcript import expert_policy, play, random_policy
from rllib_llm.errors import ConfigError

GAMES = [
    "ask_around-v0",
    "dilemma-v0",
    "half_grids-v0",
    "memory_qa-v0",
    "meta_plan-v0",
    "negotiation-v0",
    "path_checker-v0",
    "referential-v0",
    "scout_porter-v0",
    "second_try-v0",
    "secret_sum-v0",
    "service_talk-v0",
    "simulated_search-v0",
    "team-v0",
]
# Total return of experts: 1 each, unless only one agent is rewarded for success.
EXPERTS_EARN = {
    "meta_plan-v0": 5.0,
    "scout_porter-v0": 1.0,
    "service_talk-v0": 1.0,
    "simulated_search-v0": 1.0,
}
OF_ANY_TEXT = ("meta_plan-v0", "team-v0")  # every text is a message
HELD_OUT = [
    *("half_grids-v0", "memory_qa-v0", "negotiation-v0", "path_checker-v0"),
    *("referential-v0", "service_talk-v0", "simulated_search-v0"),
]
GOLDEN = pathlib.Path(__file__).parent / "golden"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def one_player(name, config=None):
    return OnePlayer(MultiAgentAdapter(make_env(name, config)))


def test_all_games_are_registered_as_multi_agent():
    assert set(GAMES) <= set(TEXT_ENVS.names())
    assert all(issubclass(TEXT_ENVS.get(n), MultiAgentTextEnv) for n in GAMES)


@pytest.mark.parametrize("name", GAMES)
def test_pettingzoo_tests_pass(name):
    api_test(make_env(name))
    seed_test(lambda: make_env(name))
    if make_env(name).simultaneous:
        parallel_api_test(make_env(name).parallel_view())
        parallel_seed_test(lambda: make_env(name).parallel_view())


@pytest.mark.parametrize("name", GAMES)
def test_check_env_finds_nothing(name):
    report = check_env(name)
    assert report.ok, str(report)
    assert report.measurements["expert_success"] == 1.0
    assert report.measurements["random_success"] < 0.8
    assert report.measurements["ms_per_turn"] < 10
    # Short enough for a tiny model that reads bytes.
    if name != "service_talk-v0":  # whose first message describes its tools
        assert report.measurements["observation_chars_max"] <= 120


@pytest.mark.parametrize("name", GAMES)
def test_experts_succeed_in_both_splits(name):
    env = one_player(name)
    for seed in range(200):
        options = {"split": ("train", "test")[seed % 2]}
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success is True, dialogue(transcript)
        assert transcript.terminated
        if name != "negotiation-v0":  # its worth differs by instance
            returns = EXPERTS_EARN.get(name, 2.0)
            assert sum(transcript.rewards) == pytest.approx(returns)


@pytest.mark.parametrize("name", GAMES)
def test_golden_dialogues(name):
    """Prompts and rewards are part of an environment's version.

    After a deliberate change raise the version, and write the new text to the file.
    """
    env = one_player(name)
    plays = [play(env, 0, expert_policy), play(env, 1, random_policy)]
    text = "\n\n".join(map(dialogue, plays)) + "\n"
    assert text == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", HELD_OUT)
def test_splits_are_disjoint_and_both_varied(name):
    env = make_env(name, {"held_out": True} if name == "memory_qa-v0" else None)
    instances = {}
    for split in ("train", "test"):
        seen = set()
        for seed in range(300):
            env.reset(seed=seed, options={"split": split})
            if name == "negotiation-v0":
                seen.add(str(env.pool))
            elif name == "path_checker-v0":
                seen.add(str(sorted(env.walls)))
            elif name == "half_grids-v0":
                halves = [env.halves[agent].tobytes() for agent in env.agents]
                seen.add((env.question, *halves))
            elif name == "memory_qa-v0":
                seen.add((*env.sentences, env.person))
            elif name == "simulated_search-v0":
                seen.add(env.fact.entity)
            elif name == "service_talk-v0":
                seen.add(env.customer.request.asked)
            else:
                seen.add(str((env.target, sorted(env.objects))))
        instances[split] = seen
    assert len(instances["train"]) > 60
    assert len(instances["test"]) > 15
    assert not instances["train"] & instances["test"]


@pytest.mark.parametrize("name", GAMES)
def test_random_unicode_is_answered(name):
    env = MultiAgentAdapter(make_env(name))
    source = random.Random(name)
    words = ["say", "keep", "accept", "pick", "path", "ok", "wall", "cooperate"]
    words += ["defect", "right", "down", "ba", "0", "1", "9", "\n", " ", "\u0663"]
    words += ["gold", "red"]
    alphabets = [range(128), range(0x80, 0x800), range(0x4E00, 0x5000)]
    for episode in range(40):
        step = env.reset(seed=episode)
        while not step.is_over:
            texts = {}
            for agent in step.observations:
                letters = map(chr, source.choices(source.choice(alphabets), k=20))
                parts = [*letters, *source.choices(words, k=source.randint(0, 8))]
                source.shuffle(parts)
                texts[agent] = " ".join(parts)
            step = env.step(texts)
            assert all(np.isfinite(r) for _, r in step.rewards)
        assert step.success in (True, False)
        assert step.stop_reason in ("terminated", "max_turns", "parse_error")


# In a team any text is a message; the task judges the answer.
@pytest.mark.parametrize("name", [g for g in GAMES if g not in OF_ANY_TEXT])
def test_invalid_actions_follow_the_policy_asked_for(name):
    config = {"invalid_action": "retry", "invalid_action_reward": -0.25}
    env = MultiAgentAdapter(make_env(name, config))
    asked = list(env.reset(seed=0).observations)
    step = env.step(dict.fromkeys(asked, "???"))
    assert step.observations == dict.fromkeys(asked, env.unwrapped.format_hint)
    assert step.rewards == [(agent, -0.25) for agent in asked]
    env = MultiAgentAdapter(make_env(name, {**config, "invalid_action": "end"}))
    env.reset(seed=0)
    step = env.step(dict.fromkeys(asked, "???"))
    late = env.unwrapped.late_agents
    joined = tuple(a for a in env.possible_agents if a not in late)
    assert step.is_over and step.terminated == joined
    assert step.stop_reason == "parse_error" and step.success is False


@pytest.mark.parametrize("name", GAMES)
def test_class_and_instance_pickle(name):
    assert pickle.loads(pickle.dumps(TEXT_ENVS.get(name))) is TEXT_ENVS.get(name)
    env = make_env(name)
    env.reset(seed=3)
    assert data_equivalence(pickle.loads(pickle.dumps(env)).last(), env.last())


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("secret_sum-v0", {"agents": 1}),
        ("secret_sum-v0", {"agents": 7}),
        ("secret_sum-v0", {"numbers": 11}),
        ("secret_sum-v0", {"partial": 1.0}),
        ("negotiation-v0", {"kinds": 1}),
        ("negotiation-v0", {"max_count": 0}),
        ("negotiation-v0", {"offers": 0}),
        ("negotiation-v0", {"talk": 1}),
        ("referential-v0", {"candidates": 7}),
        ("referential-v0", {"values": 2}),
        ("referential-v0", {"words": 1}),
        ("referential-v0", {"length": 0}),
        ("scout_porter-v0", {"doors": 2}),
        ("scout_porter-v0", {"doors": 7}),
        ("scout_porter-v0", {"tip": -0.1}),
        ("scout_porter-v0", {"tip": 1.0}),
        ("service_talk-v0", {"rules": 6}),
        ("simulated_search-v0", {"noise": 1.5}),
        ("simulated_search-v0", {"engine": "web"}),
        ("second_try-v0", {"bonus": -0.5}),
        ("second_try-v0", {"task": "team-v0"}),
        ("half_grids-v0", {"cells": 3}),
        ("ask_around-v0", {"people": 1}),
        ("ask_around-v0", {"things": 6}),
        ("ask_around-v0", {"questions": 0}),
        ("ask_around-v0", {"world": -1}),
        ("ask_around-v0", {"shown": 1.5}),
        ("meta_plan-v0", {"executors": 0}),
        ("meta_plan-v0", {"task": "team-v0"}),
        ("half_grids-v0", {"size": 8}),
        ("dilemma-v0", {"min_rounds": 0}),
        ("dilemma-v0", {"max_rounds": 2}),
        ("dilemma-v0", {"temptation": 6.0}),
        ("dilemma-v0", {"talk": None}),
        ("path_checker-v0", {"size": 2}),
        ("path_checker-v0", {"walls": 0}),
        ("path_checker-v0", {"walls": 20}),
        ("path_checker-v0", {"attempts": 0}),
    ],
)
def test_impossible_options_are_refused(name, config):
    with pytest.raises(ConfigError, match=next(iter(config))):
        make_env(name, config).reset(seed=0)


def test_importing_the_envs_loads_no_board_games():
    code = (
        "import sys, rllib_llm.envs as e; e.make_env('dilemma-v0').parallel_view(); "
        "print({'torch', 'ray', 'pygame', 'pytest'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"
