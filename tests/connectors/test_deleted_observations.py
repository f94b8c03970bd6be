"""Agents that delete observations: what they read, and the rows of their turns."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from team_helpers import Run, single_config, worth

from rllib_llm import GRPOConfig
from rllib_llm.connectors.learner.token_rows import build_rows
from rllib_llm.data import columns
from rllib_llm.data.edits import DELETED, MARKER, delete_observations
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import TurnResult
from rllib_llm.envs import make_env
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import EnvContractError

SEARCH = {"task_config": {"hops": 2, "results": 6}}


class Forgetful(TextEnv):
    """Four turns; the third reply deletes the second observation."""

    system_prompt = "Be brief."
    max_turns = 4

    def start(self, rng):
        self.number = int(rng.integers(100))
        return f"First {self.number}."

    def parse(self, completion):
        return completion or "-"

    def reply(self, action):
        return TurnResult(f"Then {self.turn}.", reward=worth(action))

    def more_info(self):
        return {DELETED: [2]} if self.turn == 3 else {}


@pytest.fixture(scope="module")
def episodes():
    config = single_config(
        GRPOConfig,
        env=Forgetful,
        rollouts={"episodes_per_iteration": 8, "group_size": 4},
        training={"drop_zero_variance_groups": False},
    )
    run = Run(config, learner=False)
    return run, run.sample(groups=2)


def turns_of(episode):
    return list(episode.get_extra_model_outputs(columns.TURN))


def test_a_deleted_observation_is_read_no_more(episodes):
    run, sampled = episodes
    decode = run.config.chat_renderer().tokenizer.decode
    for episode in sampled:
        *before, last = turns_of(episode)
        assert [turn.extends for turn in before] == [True] * 3
        assert not last.extends
        prompt = decode(last.prompt_ids)
        assert "First" in prompt and "Then 3." in prompt and "Be brief." in prompt
        assert MARKER in prompt and "Then 1." not in prompt
        assert "Then 1." in decode(np.concatenate([t.prompt_ids for t in before]))


def test_every_sampled_token_is_in_exactly_one_row(episodes):
    _, sampled = episodes
    for episode in sampled:
        turns = turns_of(episode)
        rows = build_rows(turns, [0.0] * len(turns))
        assert len(rows) == 2
        counted = collections.Counter(
            int(turn) for row in rows for turn in row.turn_ids if turn >= 0
        )
        assert counted == {i: len(t.action_ids) for i, t in enumerate(turns)}
        for row, (first, last) in zip(rows, ((0, 2), (3, 3)), strict=True):
            trained = row.ids[row.turn_ids >= 0].tolist()
            assert trained == [
                int(token) for t in turns[first : last + 1] for token in t.action_ids
            ]


def test_all_segments_of_a_rollout_have_its_advantage(episodes):
    from team_helpers import set_group_advantages

    run, sampled = episodes
    set_group_advantages(run.config, sampled)
    for episode in sampled:
        advantage = np.array(episode_data(episode).advantage)
        assert advantage.size == 1 or np.ptp(advantage) == 0


def test_numbers_of_no_observation_are_refused():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "content": "c"},
    ]
    before = [dict(m) for m in messages]
    shared = messages[3]
    delete_observations(messages, [2])
    assert messages == [*before[:3], {"role": "tool", "content": MARKER}]
    assert shared["content"] == "c"  # other conversations may hold the same message
    for wrong in (0, 3, "1"):
        with pytest.raises(EnvContractError, match="numbered from 1"):
            delete_observations(messages, [wrong])


# The environment ----------------------------------------------------------------------


def prune(**config):
    return make_env("prune-v0", {**SEARCH, **config})


def test_observations_are_numbered_and_can_be_deleted():
    env = prune()
    first, _ = env.reset(seed=0)
    assert first.startswith("[1] ")
    second, *_ = env.step(env.task.expert_action(np.random.default_rng(0)))
    third, reward, _, _, info = env.step(env.task.expert_action(None))
    assert second.startswith("[2] ") and third.startswith("[3] ")
    length = env.length
    text, reward, _, _, info = env.step("prune 2: found it")
    assert text == "[4] Deleted 2." and reward == 0 and info[DELETED] == [2]
    added = len("prune 2: found it") + len(text)
    assert env.length == length + added - len(second) + len(MARKER)
    *_, info = env.step(env.task.expert_action(None))
    assert info["success"] and DELETED not in info


@pytest.mark.parametrize("text", ["prune 1: a", "prune 9: a", "prune 1 2: a"])
def test_the_task_and_what_does_not_exist_cannot_be_deleted(text):
    env = prune()
    env.reset(seed=0)
    env.step(env.task.expert_action(np.random.default_rng(0)))
    answer, *_, info = env.step(text)
    assert "nothing to delete" in answer and DELETED not in info


def test_without_room_the_episode_is_lost_unless_something_is_deleted():
    for seed in range(20):
        kept = play(prune(room=440, prune=False), seed, expert_policy)
        deleted = play(prune(room=440), seed, expert_policy)
        assert not kept.success and "The context is full." in kept.observations[-1]
        assert deleted.success and len(deleted.actions) > 3


def test_without_the_tool_it_is_the_task_with_numbers():
    plain, wrapped = make_env("search_facts-v0", {"hops": 2}), prune(prune=False)
    for seed in range(5):
        assert play(wrapped, seed, expert_policy).success
    assert plain.max_turns <= wrapped.max_turns


def test_deleting_costs_what_is_set():
    env = prune(cost=0.25)
    env.reset(seed=0)
    for _ in range(2):
        env.step(env.task.expert_action(np.random.default_rng(0)))
    _, reward, *_ = env.step("prune 2: a")
    assert reward == -0.25
