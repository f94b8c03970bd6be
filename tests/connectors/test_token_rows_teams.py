"""Rows of teams: owners, order, and a central critic's rows."""

import numpy as np
import pytest
from ray.rllib.core.columns import Columns
from team_helpers import (
    Pair,
    PairTogether,
    Quiet,
    Run,
    batches,
    random_script,
    team_config,
    turns_of,
)

from rllib_llm import LLMPPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.types import StopPolicy


def ids_of(data, row):
    length = int(data[columns.ATTENTION_MASK][row].sum())
    return data[columns.INPUT_IDS][row, :length].tolist()


def trained(data, row):
    """(step, ids) of each message that is trained in a row."""
    mask = data[Columns.LOSS_MASK][row]
    steps = data[columns.TURN_STEPS][row]
    return [
        (int(step), data[columns.INPUT_IDS][row][mask & (steps == step)].tolist())
        for step in sorted(set(steps[mask].tolist()))
    ]


@pytest.fixture(scope="module")
def run():
    return Run(team_config(Pair))


def test_every_turn_is_in_one_row_of_its_policy(run):
    episodes = run.sample()
    found = batches(run.learner, episodes)
    for module_id, agent in (("a", "ann_0"), ("b", "ben_0")):
        data = found[module_id]
        assert data[columns.MULTI_AGENT_EPISODE_INDEX].tolist() == [0, 1, 2, 3]
        assert data[columns.EPISODE_INDEX].tolist() == [0, 1, 2, 3]
        assert set(data[columns.AGENT_INDEX].tolist()) == {int(agent == "ben_0")}
        for row, episode in enumerate(episodes):
            sampled = [
                (turn.env_t, turn.action_ids.tolist())
                for who, turn in turns_of(episode)
                if who == agent
            ]
            assert trained(data, row) == sampled
            own = episode_data(episode.agent_episodes[agent])
            assert ids_of(data, row) == own.ids


def test_agents_that_share_a_policy_keep_rows_of_their_own():
    run = Run(team_config(Pair, policies=["a"], mapping="a"))
    episodes = run.sample(2)
    data = batches(run.learner, episodes)["a"]
    assert data[columns.MULTI_AGENT_EPISODE_INDEX].tolist() == [0, 0, 1, 1]
    assert data[columns.AGENT_INDEX].tolist() == [0, 1, 0, 1]
    assert data[columns.EPISODE_INDEX].tolist() == [0, 1, 2, 3]


def test_a_shared_critic_reads_the_rows_of_all_policies(run):
    episodes = run.sample()
    found = batches(run.learner, episodes)
    critic = found["critic"]
    rows = {
        (int(j), int(a)): ids_of(critic, r)
        for r, (j, a) in enumerate(
            zip(
                critic[columns.MULTI_AGENT_EPISODE_INDEX],
                critic[columns.AGENT_INDEX],
                strict=True,
            )
        )
    }
    assert len(rows) == len(critic[columns.INPUT_IDS]) == 8
    for agent, module_id in enumerate("ab"):
        for row in range(4):
            assert rows[row, agent] == ids_of(found[module_id], row)


def test_a_central_critic_reads_everything_in_execution_order():
    run = Run(team_config(Pair, training={"critic": "central"}))
    episodes = run.sample()
    critic = batches(run.learner, episodes)["critic"]
    for row, episode in enumerate(episodes):
        agent_turns = turns_of(episode)
        assert [who for who, _ in agent_turns] == ["ann_0", "ben_0"] * 2
        whole = [i for _, t in agent_turns for i in (*t.prompt_ids, *t.action_ids)]
        assert ids_of(critic, row) == whole
        assert trained(critic, row) == [
            (t.env_t, t.action_ids.tolist()) for _, t in agent_turns
        ]


def test_a_central_critic_reads_all_prompts_of_a_step_before_any_answer():
    run = Run(team_config(PairTogether, training={"critic": "central"}))
    (episode,) = run.sample(1)
    critic = batches(run.learner, [episode])["critic"]
    steps = {}
    for _, turn in turns_of(episode):
        steps.setdefault(turn.env_t, []).append(turn)
    whole = []
    for together in steps.values():
        whole += [i for t in together for i in t.prompt_ids]
        whole += [i for t in together for i in t.action_ids]
    assert ids_of(critic, 0) == whole
    # One value per step: before the first token that anyone says in it.
    starts = np.flatnonzero(critic[columns.MESSAGE_STARTS][0])
    assert len(starts) == len(steps) == 2
    sampled = critic[Columns.LOSS_MASK][0]
    assert all(sampled[s] and not sampled[s - 1] for s in starts)


def test_a_central_critic_reads_scripts_but_does_not_value_them():
    policies = {"a": None, "b": {"scripted_policy": random_script}}
    config = team_config(Pair, policies=policies, training={"critic": "central"})
    run = Run(config)
    (episode,) = run.sample(1)
    critic = batches(run.learner, [episode])["critic"]
    assert [step for step, _ in trained(critic, 0)] == [0, 2]


def test_a_truncated_episode_ends_with_the_next_agents_prompt():
    config = team_config(
        Pair, training={"critic": "central"}, rollouts={"max_turns": 3}
    )
    run = Run(config)
    (episode,) = run.sample(1)
    critic = batches(run.learner, [episode])["critic"]
    prompt = episode_data(episode.agent_episodes["ben_0"]).prompt.ids
    ids = ids_of(critic, 0)
    assert ids[-len(prompt) :] == list(prompt)
    assert critic[columns.BOOTSTRAP_COLUMN].tolist() == [len(ids)]
    assert critic[columns.BOOTSTRAPS_AGENT_TURN].tolist() == [True]


def test_an_episode_without_trained_turns_gives_the_critic_nothing():
    policies = {"a": None, "b": {"scripted_policy": random_script}}
    config = team_config(
        Quiet, policies=policies, mapping={"ann": "b", "ben": "a"}, train=["a"]
    )
    config.training(critic="central").rollouts(max_turns=1)
    run = Run(config)
    silent = run.sample(2)  # Ben is asked in the second round only
    assert batches(run.learner, silent) == {}
    config = config.copy(copy_frozen=False).rollouts(max_turns=2)
    other = Run(config)
    both = [*silent, *other.sample(1)]
    found = batches(other.learner, both)
    assert found["a"][columns.MULTI_AGENT_EPISODE_INDEX].tolist() == [2]
    assert found["critic"][columns.MULTI_AGENT_EPISODE_INDEX].tolist() == [2]


def test_masked_episodes_have_rows_but_train_nothing(run):
    episodes = run.sample(2)
    for part in (episodes[0], *episodes[0].agent_episodes.values()):
        episode_data(part).stop_policy = StopPolicy.MASK
    found = batches(run.learner, episodes)
    for module_id in ("a", "b", "critic"):
        mask = found[module_id][Columns.LOSS_MASK]
        masked = found[module_id][columns.MULTI_AGENT_EPISODE_INDEX] == 0
        assert not mask[masked].any() and mask[~masked].any(dim=1).all()


def test_rows_of_frozen_policies_are_not_built():
    for train in (["a"], only_a):
        run = Run(team_config(Pair, LLMPPOConfig, train=train))
        assert set(batches(run.learner, run.sample(1))) == {"a"}


def only_a(module_id, batch=None):
    return module_id == "a"


def test_a_message_is_never_split_over_rows():
    config = team_config(Pair, rollouts={"row_per_turn": True})
    run = Run(config)
    episodes = run.sample()
    for module_id in ("a", "b"):
        data = batches(run.learner, episodes)[module_id]
        rows, cols = np.nonzero(data[Columns.LOSS_MASK].numpy())
        keys = list(
            zip(
                data[columns.MULTI_AGENT_EPISODE_INDEX].numpy()[rows],
                data[columns.TURN_STEPS].numpy()[rows, cols],
                strict=True,
            )
        )
        owner = {}
        for key, row in zip(keys, rows, strict=True):
            assert owner.setdefault(key, row) == row
        assert len(set(owner.values())) == len(owner) == 8
        starts = data[columns.MESSAGE_STARTS].sum(dim=1)
        assert starts.tolist() == [1.0] * 8
