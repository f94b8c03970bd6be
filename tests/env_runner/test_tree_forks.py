"""Forks where tree search grows (fork mcts)."""

from types import SimpleNamespace

import numpy as np
import pytest
from fork_toys import Diary, Failing, group
from runner_helpers import make_runner

from rllib_llm import GRPOConfig
from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.places import Branch
from rllib_llm.data.types import TurnResult
from rllib_llm.env_runner.episode_tree import MAX_REVISITS, GroupTrees, turns_of
from rllib_llm.env_runner.task_queue import GroupsWanted
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.forks.mcts import Mcts
from rllib_llm.forks.search_tree import TreePlace, add, backup

TREE = {"name": "mcts", "width": 2, "exploration": 0.5}


class Forked(TextEnv):
    """Two answers at each of three turns: the parity of the text; odd ones count."""

    max_turns = 10

    def start(self, rng) -> str:
        self.past: list[int] = []
        return "Begin."

    def parse(self, completion):
        return str(len(completion) % 2)

    def reply(self, action):
        self.past.append(int(action))
        return TurnResult(
            f"So far {self.past}.", float(action) / 3, terminated=len(self.past) == 3
        )

    def random_action(self, rng):
        return "a"


def runner_of(env, size=8, slots=8, fork=TREE):
    return make_runner(
        env, fork=fork, group_size=size, episodes_per_iteration=size, slots=slots
    )


@pytest.fixture(scope="module")
def leaves():
    runner = runner_of(Forked)
    tasks = [*group(8), *group(8, number=1)]
    episodes = runner.sample(tasks=tasks)
    yield runner, tasks, episodes
    runner.stop()


def turns(episode):
    return episode.get_extra_model_outputs(columns.TURN)


def replayed(episodes, rule=None):
    """Return where each episode of a group should have begun, by a second tree."""
    rule = rule or Mcts(width=2, exploration=0.5)
    root, begun = TreePlace(), []
    for _ in episodes:
        path = rule.path(root)
        revisits = 0
        while path and path[-1].after is None and revisits < MAX_REVISITS:
            backup(path, 1.0)
            path, revisits = rule.path(root), revisits + 1
        episode = episodes[len(begun)]
        if path and path[-1].after is None:
            path = []
        begun.append((len(path), path[-1].data.episode if path else None))
        new = add(
            (path[-1].after if path else None) or root,
            turns_of(episode, path[-1].data if path else None),
        )
        backup([*path, *new], 1.0)
    return begun


def test_each_episode_begins_where_the_tree_of_the_earlier_ones_grows(leaves):
    _, _, episodes = leaves
    for first in (0, 8):
        group_of = episodes[first : first + 8]
        data = [episode_data(episode) for episode in group_of]
        assert [each.task.rollout for each in data] == list(range(8))
        expected = replayed(group_of)
        assert [each.fork_turn for each in data] == [turn for turn, _ in expected]
        assert any(each.is_fork for each in data)
        for episode, (turn, parent) in zip(group_of, expected, strict=True):
            for number in range(turn):
                assert turns(episode)[number] is turns(parent)[number]


def test_a_simulation_counts_from_the_prompt_on(leaves):
    """Also one whose episode began further down: N of the first turns adds up."""

    class Counted(Mcts):
        num_paths = 0

        def path(self, root):
            self.num_paths += 1
            return super().path(root)

    rule = Counted(width=2, exploration=0.5)
    trees = GroupTrees(rule)
    episodes = leaves[2][:8]
    for episode in episodes:
        trees.next_place(0)
        trees.add(0, SimpleNamespace(episode=episode))
    root = trees._roots[0]
    assert any(episode_data(e).fork_turn for e in episodes)
    # A tree with nothing left to sample begins at the prompt, after as many tries.
    assert root.visits == rule.num_paths + rule.num_paths // MAX_REVISITS


def test_the_environment_goes_on_from_the_place(leaves):
    for episode in leaves[2]:
        env = Forked()
        env.reset(seed=5)
        for turn, action in enumerate(episode.get_actions()):
            text, reward, *_ = env.step(action)
            assert text == episode.get_observations(turn + 1)
            assert reward == pytest.approx(episode.get_rewards(turn))


@pytest.mark.parametrize("slots", [1, 3])
def test_the_number_of_slots_changes_no_tree(leaves, slots):
    _, tasks, episodes = leaves
    runner = runner_of(Forked, slots=slots)
    again = runner.sample(tasks=tasks)
    runner.stop()
    for one, other in zip(episodes, again, strict=True):
        assert episode_data(one).path == episode_data(other).path
        assert list(one.get_actions()) == list(other.get_actions())


def test_groups_that_are_sampled_ahead_have_the_same_trees(leaves):
    _, tasks, episodes = leaves
    runner = runner_of(Forked, slots=4)
    rollout = runner._get_rollout(True)
    got, _ = rollout.run_groups(tasks, GroupsWanted(2))
    runner.stop()
    paths = [episode_data(e).path for number in (0, 1) for e in got[number]]
    assert paths == [episode_data(e).path for e in episodes]


def test_greedy_episodes_are_not_searched(leaves):
    runner, tasks, _ = leaves
    for episode in runner.sample(tasks=tasks[:2], explore=False):
        assert episode_data(episode).path == (
            Branch(0, episode_data(episode).task.rollout),
        )


def test_an_environment_that_fails_is_played_again():
    Failing.failures.clear()
    runner = runner_of(Failing, size=6)
    episodes = runner.sample(tasks=group(6))
    runner.stop()
    assert len(Failing.failures) == 1 and len(episodes) == 6
    assert [episode_data(e).task.rollout for e in episodes] == list(range(6))


def test_a_tree_without_new_places_begins_at_the_prompt_again():
    class OneWay(Diary):
        def parse(self, completion):
            return "same"

    runner = runner_of(OneWay, size=8, fork={"name": "mcts", "width": 1})
    # Numbers of the diary are random by seed: with one action there is one path.
    episodes = runner.sample(tasks=group(8, length=1))
    runner.stop()
    assert [episode_data(e).fork_turn for e in episodes] == [0] * 8


def test_trees_are_forgotten():
    trees = GroupTrees(Mcts())
    assert trees.next_place(3) == (None, 1) and 3 in trees._roots
    trees.end(3)
    assert not trees._roots and not trees._paths


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"width": 0}, "width=0"),
        ({"exploration": -1.0}, "exploration=-1.0"),
        ({"rule": "best"}, "rule"),
        ({"backup": "sum"}, "backup"),
        ({"gamma": 2.0}, "gamma"),
    ],
)
def test_wrong_settings(settings, expected):
    config = GRPOConfig().environment("guess_number-v0")
    config.rollouts(fork={"name": "mcts", **settings}, group_size=8)
    with pytest.raises(ConfigError, match=expected):
        config.validate()


@pytest.mark.parametrize(("by", "expected"), [("mean", 0.5), ("max", 1.0)])
def test_backups(by, expected):
    root = TreePlace()
    path = add(root, _turns([1.0]))
    for reward in (1.0, 0.0):
        path[0].reward = reward
        backup(path, 1.0, by)
    assert path[0].value == pytest.approx(expected)
    # Only returns below zero: the first one counts, not the initial 0.
    (low,) = add(TreePlace(), _turns([-1.0]))
    backup([low], 1.0, "max")
    assert low.value == -1.0


def _turns(rewards):
    from rllib_llm.forks.search_tree import SampledTurn

    last = len(rewards) - 1
    return [SampledTurn(i, r, -0.1, i == last) for i, r in enumerate(rewards)]


def test_puct_prefers_likely_turns():
    root = TreePlace()
    from rllib_llm.forks.search_tree import SampledTurn

    for key, logp in (("a", -3.0), ("b", -0.1)):
        backup(add(root, [SampledTurn(key, 0.0, logp, False)]), 1.0)
    (chosen,) = Mcts(rule="puct", width=2).path(root)
    assert chosen is root.turns["b"]
    assert np.isclose(chosen.logp, -0.1)
