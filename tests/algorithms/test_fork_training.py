"""GRPO on forked episodes: whole leaves, or each turn once (fork_training)."""

import copy

import numpy as np
import pytest
import torch
from learner_helpers import (
    fake_episode,
    gradients,
    make_batch,
    make_config,
    make_learner,
)
from team_helpers import set_group_advantages

from rllib_llm import GRPOConfig
from rllib_llm.advantages.fork_trees import nodes_of
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import Branch, place_of
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import StopPolicy, Task
from rllib_llm.env_runner.recorder import SingleAgentRecorder
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError

SPACES = (UnicodeText(), UnicodeText())
# (parent, turn of the fork, return)
TREE = [(None, 0, 1.0), (0, 1, 0.0), (1, 2, 3.0), (0, 2, 0.5), (None, 0, -1.0)]


def leaves():
    """Return five leaves of two trees, three turns each."""
    made = []
    for rollout, (parent, fork_turn, reward) in enumerate(TREE):
        own = fake_episode(rollout, reward=reward)
        path = ()
        recorder = SingleAgentRecorder(Task(0, rollout, 0), SPACES)
        data = recorder.data
        if parent is None:
            recorder.begin(("start", {}))
        else:
            source = made[parent]
            place = place_of(source, episode_data(source), fork_turn)
            recorder.resume(place)
            path = place.path
        for turn in range(fork_turn, 3):
            record = own.get_extra_model_outputs(columns.TURN, turn)
            data.record(record)
            data.messages += [{"role": "user", "content": "next"}] * bool(turn)
            data.messages += [{"role": "assistant", "content": "x"}]
            recorder.episode.add_env_step(
                observation="next",
                action="x",
                reward=reward if turn == 2 else 0.0,
                infos={},
                terminated=turn == 2,
                extra_model_outputs={columns.TURN: record},
            )
        data.path = (*path, Branch(fork_turn, rollout))
        data.stop_policy = StopPolicy.TRAIN
        made.append(recorder.episode)
    return made


def config_of(**training):
    config = make_config(
        GRPOConfig, advantage_scale="none", loss_agg_mode="seq-mean-token-sum"
    ).training(**training)
    return config.rollouts(
        fork={"name": "every_turn", "first": 1}, group_size=8, episodes_per_iteration=8
    )


def played(**training):
    """Return the leaves with advantages as GRPO's driver sets them."""
    config, episodes = config_of(**training), leaves()
    set_group_advantages(config, episodes)
    return episodes


def nodes(episodes):
    return nodes_of(SampledEpisodes(episodes).table())


def per_turn(episode):
    return np.broadcast_to(np.asarray(episode_data(episode).advantage, float), 3)


def test_nodes_are_the_turns_that_leaves_share():
    found = nodes(leaves())
    wanted = [[0, 1, 2], [0, 3, 4], [0, 3, 5], [0, 1, 6], [7, 8, 9]]
    assert found.of_turn.reshape(5, 3).tolist() == wanted
    assert found.parents.tolist() == [-1, 0, 1, 0, 3, 3, 1, -1, 7, 8]
    assert found.num_leaves.tolist() == [4, 2, 1, 2, 1, 1, 1, 1, 1, 1]


def test_group_statistics_count_each_leaf_once():
    returns = np.array([reward for *_, reward in TREE])
    for episode, value in zip(played(), returns - returns.mean(), strict=True):
        np.testing.assert_allclose(per_turn(episode), value)


def test_advantages_in_trees_are_of_the_leaves_that_share_a_turn():
    tree = {"name": "treerl"}
    config, episodes = config_of(), leaves()
    config.training(advantage_estimator=tree)
    set_group_advantages(config, episodes)
    found = nodes(episodes)
    returns = np.repeat([reward for *_, reward in TREE], 3)
    value = [returns[found.of_turn == node].mean() for node in range(10)]
    root = np.mean([reward for *_, reward in TREE])
    wanted = [
        (2 * value[n] - root - (value[p] if p >= 0 else root)) / size**0.5
        for n, (p, size) in enumerate(zip(found.parents, found.num_leaves, strict=True))
    ]
    for episode, of_turn in zip(episodes, found.of_turn.reshape(5, 3), strict=True):
        np.testing.assert_allclose(per_turn(episode), np.take(wanted, of_turn))


def test_each_turn_is_trained_once_with_the_mean_of_its_leaves():
    whole, tree = played(), played(fork_training="tree")
    of_turn = nodes(whole).of_turn.reshape(5, 3)
    advantages = np.array([per_turn(episode) for episode in whole])
    trained = []
    for leaf, episode in enumerate(tree):
        for turn in range(3):
            if turn in episode_data(episode).masked_turns:
                continue
            node = of_turn[leaf, turn]
            trained.append(node)
            mean = np.mean(
                [advantages[i, turn] for i in range(5) if of_turn[i, turn] == node]
            )
            assert per_turn(episode)[turn] == pytest.approx(mean)
    assert sorted(trained) == list(range(10))


def test_the_gradient_is_that_of_all_leaves_if_nodes_count_their_leaves():
    """Training a node once, times its leaves, is training each leaf in full."""
    learner = make_learner(config_of())
    whole, tree = played(), played(fork_training="tree")
    of_leaves = gradients(learner, whole)
    of_nodes = gradients(learner, copy.deepcopy(tree))
    found = nodes(whole)
    counts = found.num_leaves[found.of_turn].reshape(5, 3)
    for episode, count in zip(tree, counts, strict=True):
        episode_data(episode).advantage = per_turn(episode) * count
    weighted = gradients(learner, tree)
    assert set(of_leaves) == set(weighted)
    apart = 0.0
    for name, gradient in of_leaves.items():
        torch.testing.assert_close(weighted[name], gradient, atol=2e-6, rtol=1e-4)
        apart += float((of_nodes[name] - gradient).abs().max())
    assert apart > 1e-3  # without the counts it is another gradient


def test_turns_of_a_leaf_that_is_masked_are_trained_elsewhere():
    config, episodes = config_of(fork_training="tree"), leaves()
    episode_data(episodes[0]).stop_policy = StopPolicy.MASK
    episode_data(episodes[1]).masked_turns = frozenset({1})
    set_group_advantages(config, episodes)
    masked = [set(episode_data(episode).masked_turns) for episode in episodes]
    # Node 0 moves to leaf 1, node 3 to leaf 2, node 1 to leaf 3.
    assert masked[1:4] == [{1}, {0}, {0}]
    returns = np.array([reward for *_, reward in TREE])
    wanted = np.mean(returns[1:4]) - returns.mean()
    assert per_turn(episodes[1])[0] == pytest.approx(wanted)


def test_tokens_of_the_batch_are_the_nodes():
    learner = make_learner(config_of())
    mask = {}
    for mode in ("leaves", "tree"):
        batch = make_batch(learner, played(fork_training=mode))
        mask[mode] = int(np.asarray(batch["loss_mask"]).sum())
    turns = {
        id(turn): len(turn.action_ids)
        for episode in leaves()
        for turn in episode.get_extra_model_outputs(columns.TURN)
    }
    assert mask["tree"] < mask["leaves"]
    sizes = [
        len(turn.action_ids)
        for episode in played()
        for turn in episode.get_extra_model_outputs(columns.TURN)
    ]
    assert mask["leaves"] == sum(sizes)
    assert len(turns) == 10 and mask["tree"] == sum(turns.values())


def test_training_of_forks_needs_forks():
    config = make_config(GRPOConfig).training(fork_training="tree")
    with pytest.raises(ConfigError, match="fork_training"):
        config.validate()
