"""Episodes that begin at places of others (rollouts(fork=...))."""

import itertools

import numpy as np
import pytest
from fork_toys import Diary, Failing, Restless, Unkept, group
from runner_helpers import make_runner

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.env_runner.task_queue import GroupsWanted
from rllib_llm.errors import ConfigError, EnvContractError

TREE = {"name": "every_turn", "first": 1}


def runner_of(env=Diary, fork=TREE, size=8, **settings):
    return make_runner(
        env, fork=fork, group_size=size, episodes_per_iteration=size, **settings
    )


@pytest.fixture(scope="module")
def runner():
    made = runner_of()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def leaves(runner):
    stats = {}
    with pytest.MonkeyPatch.context() as patch:
        # sample() resets the counters once it has logged them.
        patch.setattr(
            runner.engine, "reset_stats", lambda: stats.update(runner.engine.stats())
        )
        episodes = runner.sample(tasks=group())
    return episodes, stats


def turns(episode):
    return episode.get_extra_model_outputs(columns.TURN)


def texts(episode):
    return [
        list(episode.get_observations()),
        list(episode.get_actions()),
        list(episode.get_rewards()),
        [turn.action_logps.tolist() for turn in turns(episode)],
    ]


def same(one, other):
    for left, right in zip(one, other, strict=True):
        (*ours, logps), (*theirs, their_logps) = texts(left), texts(right)
        assert ours == theirs
        for mine, yours in zip(logps, their_logps, strict=True):
            np.testing.assert_allclose(mine, yours, atol=1e-4)


def test_a_group_becomes_a_binary_tree(leaves):
    episodes, _ = leaves
    data = [episode_data(episode) for episode in episodes]
    assert [each.task.rollout for each in data] == list(range(8))
    assert sorted(each.fork_turn for each in data) == [0, 1, 2, 2, 3, 3, 3, 3]
    assert [each.is_fork for each in data] == [False] + 7 * [True]
    # Two episodes share their turns up to the later one of their branches, no more.
    for one, other in itertools.combinations(episodes, 2):
        paths = [episode_data(each).path for each in (one, other)]
        common = next(
            (max(a.turn, b.turn) for a, b in zip(*paths, strict=False) if a != b),
            max(path[-1].turn for path in paths),
        )
        same_turns = [a is b for a, b in zip(turns(one), turns(other), strict=True)]
        assert sum(same_turns) <= common
        assert same_turns == sorted(same_turns, reverse=True)
    assert len({tuple(episode.get_actions()) for episode in episodes}) == 8


def test_the_turns_before_a_fork_are_those_of_its_parent(leaves):
    episodes, _ = leaves
    for episode in episodes:
        data = episode_data(episode)
        for branch, following in itertools.pairwise(data.path):
            parent = episodes[branch.rollout]
            for turn in range(branch.turn, following.turn):
                assert turns(episode)[turn] is turns(parent)[turn]
        assert data.num_sampled == sum(len(t.action_ids) for t in turns(episode))
        inherited = sum(len(t.action_ids) for t in turns(episode)[: data.fork_turn])
        assert data.inherited_tokens == inherited


def test_the_environment_goes_on_from_the_place(leaves):
    for episode in leaves[0]:
        env = Diary()
        assert env.reset(seed=5)[0] == episode.get_observations(0)
        for turn, action in enumerate(episode.get_actions()):
            text, reward, *_ = env.step(action)
            assert text == episode.get_observations(turn + 1)
            assert reward == pytest.approx(episode.get_rewards(turn))


def test_the_conversation_goes_on_from_the_place(leaves):
    for episode in leaves[0]:
        data, ids = episode_data(episode), []
        for turn in turns(episode):
            assert turn.extends
            ids += [*turn.prompt_ids, *turn.action_ids]
        assert data.ids == ids
        roles = [message["role"] for message in data.messages]
        assert roles == ["user", "assistant"] * 4


def test_shared_prefixes_are_computed_once(leaves):
    episodes, stats = leaves
    prompts = 0
    for episode in episodes:
        if episode_data(episode).is_fork:
            first = episode_data(episode).fork_turn
            before = sum(
                len(t.prompt_ids) + len(t.action_ids) for t in turns(episode)[:first]
            )
            prompts += before + len(turns(episode)[first].prompt_ids)
    assert stats["shared_tokens"] > 0.5 * prompts


def test_a_tree_does_not_depend_on_slots_or_other_groups(leaves):
    few = runner_of(slots=2)
    same(few.sample(tasks=group()), leaves[0])
    few.stop()
    single = runner_of(slots=1, worker_index=3)
    both = single.sample(tasks=[*group(number=1), *group()])
    single.stop()
    same(both[8:], leaves[0])
    assert texts(both[0]) != texts(both[8])


def test_environments_without_snapshot_play_the_texts_again(leaves):
    runner = runner_of(Unkept)
    same(runner.sample(tasks=group()), leaves[0])
    runner.stop()


def test_environments_that_do_not_repeat_themselves_are_refused():
    runner = runner_of(Restless)
    with pytest.raises(EnvContractError, match=r"Restless, seed 5: after turn \d"):
        runner.sample(tasks=group())
    runner.stop()


def test_groups_that_are_sampled_ahead_are_forked(leaves):
    runner = runner_of()
    groups = runner.sample_groups(group(), GroupsWanted(1))
    runner.stop()
    same(groups[0], leaves[0])


def test_a_failure_costs_no_leaf():
    Failing.failures.clear()
    runner = runner_of(Failing)
    episodes = runner.sample(tasks=group())
    runner.stop()
    assert Failing.failures == [1]
    data = [episode_data(episode) for episode in episodes]
    assert [each.task.rollout for each in data] == list(range(8))
    assert sum(each.path[-1].attempt for each in data) == 1
    assert all(len(episode) == 4 for episode in episodes)


class Never:
    """Forks nothing."""

    roots = 3

    def __call__(self, point):
        assert point.budget
        return 0


class Once:
    """Forks as much as possible before the second turn."""

    roots = 2

    def __call__(self, point):
        return 100 if point.turn == 1 else 0


def test_what_is_not_forked_begins_at_the_prompt():
    runner = runner_of(fork=Never)
    data = [episode_data(episode) for episode in runner.sample(tasks=group())]
    runner.stop()
    assert len(data) == 8 and not any(each.is_fork for each in data)


def test_roots_have_equal_budgets():
    runner = runner_of(fork=Once)
    data = [episode_data(episode) for episode in runner.sample(tasks=group())]
    runner.stop()
    parents = [each.path[0].rollout for each in data]
    assert sorted(parents) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sum(each.is_fork for each in data) == 6


def test_greedy_rollouts_are_not_forked(runner):
    episodes = runner.sample(tasks=group(), explore=False)
    assert not any(episode_data(episode).is_fork for episode in episodes)


@pytest.mark.parametrize(
    ("fork", "size", "words"),
    [
        ({"name": "arpo", "roots": 8}, 8, "roots=8 leaves none to fork"),
        ({"name": "arpo", "chance": 1.5}, 16, "chance"),
        ("arpoo", 16, "arpo"),
        (len, 16, "has roots=None"),
    ],
)
def test_wrong_rules_are_refused(fork, size, words):
    with pytest.raises(ConfigError, match=words):
        runner_of(fork=fork, size=size)
