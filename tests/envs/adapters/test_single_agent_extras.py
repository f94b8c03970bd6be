"""Common checks of single-agent environments on optional libraries.

Each runs if its library is installed, and is skipped otherwise.
"""

from __future__ import annotations

import importlib
import pickle
import random
import shutil

import numpy as np
import pytest

from rllib_llm.envs import TEXT_ENVS, check_env, make_env
from rllib_llm.envs.transcript import expert_policy, play, random_policy

LIBRARIES = {
    "babyai-v0": "minigrid",
    "miniwob-v0": "selenium",
    "reasoning_gym-v0": "reasoning_gym",
    "scienceworld-v0": "scienceworld",
    "textworld-v0": "textworld",
    "webshop_pages-v0": "selenium",
}
CONFIGS = {
    "miniwob-v0": {"task": "click-checkboxes"},  # whose pages differ in their words
    # Its games take long to make; random play wins easy ones, given time.
    "textworld-v0": {"games": 4, "level": 3, "max_turns": 8},
}
PROGRAMS = {
    "miniwob-v0": "chromedriver",
    "scienceworld-v0": "java",
    "webshop_pages-v0": "chromedriver",
}
SLOW = ("miniwob-v0", "scienceworld-v0", "textworld-v0", "webshop_pages-v0")


@pytest.fixture(
    params=[
        pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else [])
        for n in LIBRARIES
    ]
)
def name(request):
    program = PROGRAMS.get(request.param)
    if program and shutil.which(program) is None:
        pytest.skip(f"no {program}")
    try:
        importlib.import_module(LIBRARIES[request.param])
    except ImportError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture
def made(name):
    envs = []

    def make(config=None):
        envs.append(make_env(name, {**CONFIGS.get(name, {}), **(config or {})}))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def test_check_env_finds_nothing(name):
    report = check_env(name, CONFIGS.get(name), seeds=range(3))
    assert report.ok, str(report)
    assert report.measurements["expert_success"] == 1.0
    assert report.measurements["random_success"] < 0.8


def test_experts_score_full_in_both_splits(made):
    env = made()
    for seed in range(6):
        options = {"split": ("train", "test")[seed % 2]}
        transcript = play(env, seed, expert_policy, options=options)
        assert transcript.success is True, str(transcript)
        assert sum(transcript.rewards) == pytest.approx(1.0)


def test_splits_are_disjoint(made):
    env = made()
    prompts = {
        split: {env.reset(seed=s, options={"split": split})[0] for s in range(8)}
        for split in ("train", "test")
    }
    assert not prompts["train"] & prompts["test"]
    assert len(prompts["train"]) > 1


def test_interleaved_episodes_do_not_disturb_each_other(made):
    alone = [str(play(made(), seed, random_policy)) for seed in (1, 2)]
    envs = [made(), made()]
    rngs = [np.random.default_rng((seed, 1)) for seed in (1, 2)]
    observed = [[env.reset(seed=s)[0]] for env, s in zip(envs, (1, 2), strict=True)]
    running = [0, 1]
    while running:
        random.seed(0)  # what a careless neighbour does
        np.random.seed(0)
        for i in list(running):
            text, _, terminated, truncated, _ = envs[i].step(
                envs[i].random_action(rngs[i])
            )
            observed[i].append(text)
            if terminated or truncated:
                running.remove(i)
    for transcript, texts in zip(alone, observed, strict=True):
        assert all(f"env> {text}" in transcript for text in texts)


def test_any_text_is_answered(made):
    env = made({"max_turns": 12})
    source = random.Random(0)
    words = ["go", "north", "take", "<answer>", "</answer>", "(", "9" * 40, "\n", " "]
    for seed in range(3):
        env.reset(seed=seed)
        is_over = False
        while not is_over:
            letters = map(chr, source.choices(range(32, 0x800), k=20))
            completion = "".join([*letters, *source.choices(words, k=4)])
            text, reward, terminated, truncated, info = env.step(completion)
            assert isinstance(text, str) and text and np.isfinite(reward)
            assert isinstance(info["invalid_action"], bool)
            is_over = terminated or truncated
        assert info["success"] in (True, False)


def test_classes_and_fresh_instances_pickle(name, made):
    assert pickle.loads(pickle.dumps(TEXT_ENVS.get(name))) is TEXT_ENVS.get(name)
    copy = pickle.loads(pickle.dumps(made()))
    assert copy.reset(seed=3) == made().reset(seed=3)
    copy.close()
