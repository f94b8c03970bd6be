"""Replies of the scripted expert at the places that sampled episodes visited."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from learner_helpers import make_config
from saving_helpers import Driver
from test_rewards_filters_runs import Counting

from rllib_llm import GRPOConfig, SFTConfig
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import Task
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.offline.conversation_files import parse_row
from rllib_llm.offline.demonstrations import demonstrate
from rllib_llm.offline.expert_replies import expert_replies
from rllib_llm.offline.sft_before_rl import as_episodes
from rllib_llm.offline.stored_episodes import conversation_episode

SEED = 3


@pytest.fixture(scope="module")
def config():
    return make_config(GRPOConfig)


@pytest.fixture(scope="module")
def sampled(config):
    """An episode of random guesses, four of which do not hit."""
    demo = demonstrate(
        config.make_text_env(), seed=SEED, mistake_rate=1.0, options={"split": "train"}
    )
    assert len(demo.completions) >= 4
    (episode,) = as_episodes([demo], config.chat_renderer(), config, {})
    task = Task(group_id=0, rollout=0, seed=SEED, options={"split": "train"})
    episode_data(episode).task = task
    return SampledEpisodes([episode])


def rows_of(config, sampled, turns):
    (trajectory,) = sampled.trajectories
    env = config.make_text_env()
    return list(expert_replies(env, sampled[0], trajectory, turns))


def test_the_expert_replies_at_each_place(config, sampled):
    (trajectory,) = sampled.trajectories
    rows = rows_of(config, sampled, range(len(trajectory)))
    assert len(rows) == len(trajectory)
    seen = set()
    for turn, row in enumerate(rows):
        # A slow loop: a fresh environment for each place.
        env = config.make_text_env()
        env.reset(seed=SEED, options={"split": "train"})
        for text in trajectory.completions[:turn]:
            env.step(text)
        *before, last = row["messages"]
        expected = env.unwrapped.expert_action(np.random.default_rng(0))
        assert last == {"role": "assistant", "content": expected}
        seen.add(expected)
        replies = [m for m in before if m["role"] == "assistant"]
        assert [m["content"] for m in replies] == trajectory.completions[:turn]
        assert all(m["train"] is False for m in replies)
        observed = [m["content"] for m in before if m["role"] == "user"]
        assert observed == trajectory.observations[: turn + 1]
    assert len(seen) > 1  # it depends on what the agent has found out


def test_there_are_no_rows_after_an_empty_reply(config, sampled):
    (trajectory,) = sampled.trajectories
    messages = [dict(message) for message in trajectory.messages]
    second = [m for m in messages if m["role"] == "assistant"][1]
    second["content"] = " "
    cut = dataclasses.replace(trajectory, messages=messages)
    env = config.make_text_env()
    assert len(list(expert_replies(env, sampled[0], cut, {0, 1, 2, 3}))) == 2


def test_only_the_expert_is_imitated(config, sampled):
    (row,) = rows_of(config, sampled, {2})
    stored = parse_row(json.dumps(row).encode())
    assert stored.trained == (False, False, True)
    sft = make_config(SFTConfig)
    episode = conversation_episode(stored, sft.chat_renderer())
    assert episode_data(episode).masked_turns == frozenset({0, 1})


def test_other_texts_than_before_are_an_error(config, sampled):
    (trajectory,) = sampled.trajectories
    other = config.make_text_env()
    reset = other.unwrapped.reset
    other.unwrapped.reset = lambda **given: ("Another number.", reset(**given)[1])
    with pytest.raises(EnvContractError, match="played again"):
        list(expert_replies(other, sampled[0], trajectory, {1}))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((), lambda texts: list(range(len(texts)))),
        (
            {"name": "turns_with", "observation": "too low", "last": False},
            lambda texts: [n for n, t in enumerate(texts) if "too low" in t.lower()],
        ),
        ({"name": "success", "least": 2.0}, lambda texts: []),
    ],
)
def test_filters_choose_the_turns(tmp_path, sampled, where, expected):
    config = make_config(GRPOConfig).rollouts(
        save_episodes=str(tmp_path), save_as="expert_replies", save_where=where
    )
    config.validate()
    driver = Driver()
    driver.setup(config)
    driver.save_episodes(sampled)
    lines = [
        line for file in tmp_path.glob("*.jsonl") for line in file.read_text().split()
    ]
    turns = expected(sampled.trajectories[0].observations)
    assert driver.metrics.peek("num_episodes_saved") == len(turns)
    assert bool(lines) == bool(turns)


@pytest.mark.parametrize(
    ("env", "given", "expected"),
    [
        ("guess_number-v0", {}, "nothing is saved"),
        ("guess_number-v0", {"save_episodes": "x", "correction": "No."}, "no effect"),
        ("team-v0", {"save_episodes": "x"}, "several agents"),
    ],
)
def test_settings_that_do_not_fit(env, given, expected):
    config = GRPOConfig().environment(env)
    with pytest.raises(ConfigError, match=expected):
        config.rollouts(save_as="expert_replies", **given).validate()


def test_an_environment_without_an_expert_is_refused():
    config = GRPOConfig().environment(Counting)
    config.rollouts(save_as="expert_replies", save_episodes="x")
    with pytest.raises(ConfigError, match="scripted expert"):
        config.validate()
