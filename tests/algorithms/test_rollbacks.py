"""Conversations that go back to the first wrong turn of a failed episode."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from learner_helpers import make_config
from saving_helpers import Driver

from rllib_llm import GRPOConfig, SFTConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import Task
from rllib_llm.envs import make_env
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.corrections import wrong_turns
from rllib_llm.offline.demonstrations import Demonstration
from rllib_llm.offline.rollbacks import rollbacks
from rllib_llm.offline.sft_before_rl import as_episodes
from rllib_llm.offline.stored_episodes import conversation_episode

ENV = {"task_config": {"size": 3}, "uses": 2, "thoughts": True}
SEED, SENTENCE = 3, "Not good."
OPTIONS = {"split": "train"}


def played(env, seed, policy):
    """Play an episode with a function of the environment and its number of turns."""
    observation, info = env.reset(seed=seed, options=OPTIONS)
    demo = Demonstration([observation], [], [], None, infos=[info])
    while True:
        text = policy(env.unwrapped, len(demo.completions))
        observation, reward, terminated, truncated, info = env.step(text)
        demo.completions.append(text)
        demo.observations.append(observation)
        demo.infos.append(info)
        demo.rewards.append(reward)
        if terminated or truncated:
            demo.success = info["success"]
            return demo


def sampled(demos, tasks):
    """Return plays as sampled episodes of these tasks (group, rollout, seed)."""
    config = make_config(GRPOConfig)
    episodes = as_episodes(demos, config.chat_renderer(), config, {})
    for episode, (group, rollout, seed) in zip(episodes, tasks, strict=True):
        data = episode_data(episode)
        data.task = Task(group_id=group, rollout=rollout, seed=seed, options=OPTIONS)
    return SampledEpisodes(episodes)


def saying(texts):
    return lambda env, turn: texts[turn] if turn < len(texts) else "stop"


def one_task(*plays):
    """Return episodes of one task with these texts, stopped at failed ends."""
    env = make_env("back-v0", ENV)
    demos = [played(env, SEED, saying(texts)) for texts in plays]
    return sampled(demos, [(0, number, SEED) for number in range(len(demos))])


# docs/environments/back.md shows this map: right, down falls; right, right, down, down
# reaches the goal.
SOLVED = ["go right", "go right", "go down", "go down"]
FELL = ["go right", "go down"]
WANDERED = ["go right", "go left", "go right", "go down"]


def texts(row):
    return [(m["content"], m.get("train", True)) for m in row["messages"]]


def test_a_fall_is_undone_and_the_solved_rest_follows():
    episodes = one_task(SOLVED, FELL, WANDERED)
    row, _ = rollbacks(make_env("back-v0", ENV), episodes.trajectories, SENTENCE)
    replies = [
        (m["content"], m.get("train", True))
        for m in row["messages"]
        if m["role"] == "assistant"
    ]
    assert replies == [
        ("go right", False),
        ("go down", False),
        ("Not good.\nback", True),
        ("go down or go left or go right?\ngo right", True),
        ("go down", True),
        ("go down", True),
    ]
    fell, undone = [m["content"] for m in row["messages"] if m["role"] == "user"][2:4]
    assert fell.endswith("Say back to undo it, or stop.")
    assert undone.startswith("Undone, once left.\nrow 1 column 2")


def test_several_turns_are_undone_at_once():
    episodes = one_task(SOLVED, WANDERED)
    (row,) = rollbacks(make_env("back-v0", ENV), episodes.trajectories, SENTENCE)
    assert ("Not good.\nback 3", True) in texts(row)


@pytest.mark.parametrize(
    "failed",
    [
        # No use is left.
        ["go right", "go left", "back", "go left", "back", "go down"],
        # It ended with its first wrong turn.
        ["go right", "stop"],
    ],
)
def test_what_cannot_be_undone_is_left_out(failed):
    env = make_env("back-v0", {**ENV, "invalid_action": "end"})
    demos = [played(env, SEED, saying(t)) for t in (SOLVED, failed)]
    assert not demos[1].success
    episodes = sampled(demos, [(0, 0, SEED), (0, 1, SEED)])
    assert not rollbacks(env, episodes.trajectories, SENTENCE)


def test_an_episode_that_went_back_beyond_its_wrong_turn_is_left_out():
    # The wrong turn is the second; then both are undone, and others follow.
    failed = ["go right", "go left", "back 2", "go down", "go right", "go right"]
    episodes = one_task(SOLVED, failed)
    assert not any(t.is_solved for t in episodes.trajectories[1:])
    (wrong,) = wrong_turns(episodes.trajectories)
    assert wrong.turn == 1
    assert not rollbacks(make_env("back-v0", ENV), episodes.trajectories, SENTENCE)


def test_every_row_of_random_play_is_solved_again_by_a_slow_loop():
    """On plays of a policy with mistakes; nothing of the rows is trusted."""
    env, rng = make_env("back-v0", ENV), np.random.default_rng(0)

    def policy(game, turn):
        act = game.random_action if rng.random() < 0.6 else game.expert_action
        return act(rng)

    groups, rollouts = 40, 6
    tasks = [(g, r, 50 + g) for g in range(groups) for r in range(rollouts)]
    episodes = sampled([played(env, seed, policy) for _, _, seed in tasks], tasks)
    rows = rollbacks(env, episodes.trajectories, SENTENCE)
    wrong = list(wrong_turns(episodes.trajectories))
    assert 5 < len(rows) <= len(wrong)
    seeds = {t.observations[0]: t.task.seed for t in episodes.trajectories}
    for row in rows:
        messages = row["messages"]
        replies = [m for m in messages if m["role"] == "assistant"]
        fresh = make_env("back-v0", ENV)
        first = next(m["content"] for m in messages if m["role"] == "user")
        seen = [fresh.reset(seed=seeds[first], options=OPTIONS)[0]]
        for reply in replies:
            text, _, over, cut, info = fresh.step(reply["content"])
            seen.append(text)
        assert info["success"] and (over or cut)
        assert seen[:-1] == [m["content"] for m in messages if m["role"] == "user"]
        (at,) = [n for n, r in enumerate(replies) if SENTENCE in r["content"]]
        trained = [r.get("train", True) for r in replies]
        assert trained == [False] * at + [True] * (len(replies) - at)
        # It went back to a place of the failed episode, from which both go on.
        undone = seen[at + 1].partition("\n")[2]
        assert any(undone in earlier for earlier in seen[: at + 1]), (
            "The environment says what it said there."
        )


def test_only_the_chain_from_the_reflection_on_is_imitated():
    episodes = one_task(SOLVED, FELL)
    (row,) = rollbacks(make_env("back-v0", ENV), episodes.trajectories, SENTENCE)
    stored = parse_row(json.dumps(row).encode())
    config = make_config(SFTConfig)
    episode = conversation_episode(stored, config.chat_renderer())
    assert episode_data(episode).masked_turns == frozenset({0, 1})


def test_other_texts_than_before_are_an_error():
    episodes = one_task(SOLVED, FELL)
    solved, failed = episodes.trajectories
    changed = dataclasses.replace(failed, observations=["Another.", "map", "text"])
    shown = dataclasses.replace(solved, observations=["Another."] * len(solved))
    other = make_env("back-v0", ENV)
    with pytest.raises(EnvContractError, match="played again"):
        rollbacks(other, [shown, changed], SENTENCE)


def config_with(env="back-v0", options=ENV, **given):
    config = make_config(GRPOConfig).environment(env, env_config=options)
    return config.rollouts(**{"save_as": "rollbacks", "group_size": 2, **given})


def test_rollbacks_are_saved_in_place_of_episodes(tmp_path):
    config = config_with(save_episodes=str(tmp_path), correction=SENTENCE)
    config.validate()
    driver = Driver()
    driver.setup(config)
    driver.save_episodes(one_task(SOLVED, FELL))
    (file,) = tmp_path.glob("*.jsonl")
    (line,) = file.read_text().splitlines()
    assert ("Not good.\nback", True) in texts(json.loads(line))
    assert driver.metrics.peek("num_episodes_saved") == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "nothing is saved"),
        ({"save_episodes": "x", "save_where": "success"}, "chooses the episodes"),
        ({"save_episodes": "x", "calibration_margin": 0.5}, "no effect"),
        ({"save_episodes": "x", "options": {}}, "thoughts"),
        (
            {"save_episodes": "x", "env": "frozen_lake-v0", "options": {}},
            "back-v0",
        ),
    ],
)
def test_settings_that_do_not_fit(given, expected):
    with pytest.raises(ConfigError, match=expected):
        config_with(**given).validate()
