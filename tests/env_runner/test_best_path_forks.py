"""Episodes that begin along the best of a group's earlier ones (fork follow_best)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fork_toys import Diary, Failing, group
from runner_helpers import make_runner
from team_helpers import Run, team_config
from test_team_forks import Diaries, DiariesTogether
from test_team_forks import texts as team_texts

from rllib_llm import GRPOConfig
from rllib_llm.data.episode_data import episode_data, policy_episodes
from rllib_llm.data.places import Branch
from rllib_llm.data.types import Task
from rllib_llm.env_runner.best_paths import BestPaths
from rllib_llm.env_runner.task_queue import GroupsWanted
from rllib_llm.errors import ConfigError
from rllib_llm.forks.follow_best import FollowBest

WIDTH, SIZE = 3, 14
FORK = {"name": "follow_best", "width": WIDTH}
TEAMS = (Diaries, DiariesTogether)


class Marked(Diary):
    """Rewards each entry by the digest of all that was written."""

    def reply(self, action):
        result = super().reply(action)
        result.reward = int(result.observation[:4], 16) / 2**16
        return result


def runner_of(env, slots=4, size=SIZE, fork=FORK):
    rollouts = {"group_size": size, "episodes_per_iteration": size, "fork": fork}
    if env not in TEAMS:
        return make_runner(env, slots=slots, **rollouts)
    config = team_config(env, GRPOConfig, slots=slots, rollouts=rollouts)
    return Run(config, learner=False).runner


def sample(env, tasks, **settings):
    runner = runner_of(env, **settings)
    episodes = runner.sample(tasks=tasks)
    runner.stop()
    return episodes


def tasks_of(env, size=SIZE, number=0):
    if env in TEAMS:
        return [Task(number, rollout, 5 + number) for rollout in range(size)]
    return group(size, number)


@pytest.fixture(scope="module", params=[Marked, *TEAMS])
def leaves(request):
    return request.param, sample(request.param, tasks_of(request.param))


def total(episode):
    return sum(sum(part.get_rewards()) for part in policy_episodes(episode))


def num_steps(episode):
    return episode.env_t if hasattr(episode, "agent_episodes") else len(episode)


def expected_paths(episodes):
    """Paths of the episodes, by the rule as its docstring says it."""
    left, paths, turn, followed = list(episodes), [], 0, None
    while left:
        count = WIDTH if followed is None else WIDTH - 1
        level, left = left[:count], left[count:]
        for episode in level:
            rollout = episode_data(episode).task.rollout
            before = () if followed is None else episode_data(followed).path
            before = tuple(branch for branch in before if branch.turn < turn)
            paths.append((*before, Branch(turn, rollout)))
        played = level if followed is None else [followed, *level]
        best = max(played, key=total)
        turn, followed = turn + 1, best
        if turn >= num_steps(best):
            turn, followed = 0, None
    return paths


def test_each_place_follows_the_best_turn_at_the_one_before(leaves):
    _, episodes = leaves
    found = [episode_data(episode).path for episode in episodes]
    assert found == expected_paths(episodes)
    # The prompt, every later step, and the prompt again after the end of the best one.
    turns = [path[-1].turn for path in found]
    assert turns[:3] == [0] * 3 and turns[3:5] == [1] * 2 and turns[5:7] == [2] * 2
    assert 0 in turns[3:]
    # It matters which one is followed: another one than the first was the best.
    assert any(path[0].rollout not in (0, path[-1].rollout) for path in found)


def test_the_agents_of_each_step_have_a_place_of_their_own():
    episodes = sample(Diaries, tasks_of(Diaries))
    acting = {}
    for episode in episodes:
        for part in policy_episodes(episode):
            for turn in part.get_extra_model_outputs("turn"):
                acting.setdefault(turn.env_t, set()).add(part.agent_id)
    turns = {episode_data(episode).fork_turn for episode in episodes}
    assert {agent for turn in turns for agent in acting[turn]} == {"ann_0", "ben_0"}
    assert all(len(acting[turn]) == 1 for turn in turns)


def test_neither_slots_nor_other_groups_change_a_path(leaves):
    env, episodes = leaves
    both = [*tasks_of(env, number=1), *tasks_of(env)]
    again = sample(env, both, slots=1)[SIZE:]
    paths = [episode_data(episode).path for episode in episodes]
    assert [episode_data(episode).path for episode in again] == paths
    if env in TEAMS:
        assert [team_texts(e) for e in again] == [team_texts(e) for e in episodes]


def test_groups_that_are_sampled_ahead_have_the_same_paths():
    alone = sample(Marked, group(SIZE))
    runner = runner_of(Marked)
    rollout = runner._get_rollout(True)
    got, _ = rollout.run_groups([*group(SIZE), *group(SIZE, 1)], GroupsWanted(2))
    runner.stop()
    paths = [episode_data(episode).path for episode in alone]
    assert [episode_data(episode).path for episode in got[0]] == paths
    assert not rollout._tasks._running  # finished groups are forgotten


def test_an_environment_that_fails_is_played_again():
    Failing.failures.clear()
    episodes = sample(Failing, group(8), size=8)
    assert len(Failing.failures) == 1 and len(episodes) == 8
    assert {episode_data(e).fork_turn for e in episodes} == {0, 1, 2, 3}


def recorder(rollout, reward, steps=3):
    class Part(list):
        def get_rewards(self):
            return [reward] * len(self)

    episode = Part(range(steps))
    return SimpleNamespace(
        task=Task(0, rollout, 0),
        env_t=steps,
        episode=episode,
        place=lambda turn: (rollout, turn),
    )


def test_among_equal_ones_the_first_is_followed_and_stays():
    paths = BestPaths(FollowBest(width=3))
    for rollout in (2, 0, 1):
        paths.add(7, recorder(rollout, 0.5))
    assert paths.next_place(7) == ((0, 1), 2)
    for rollout in (4, 3):
        paths.add(7, recorder(rollout, 0.5))
    assert paths.next_place(7) == ((0, 2), 2)
    paths.add(7, recorder(5, 0.9))
    assert paths.next_place(7) == (None, 3)  # it ended before a fourth turn
    assert paths.next_place(7) == (None, 3)  # all that began there have failed
    paths.end(7)
    assert not paths._paths


@pytest.mark.parametrize(
    ("fork", "size", "message"),
    [
        ({"width": 1}, 8, "width=1 must be >= 2"),
        ({"width": 8}, 8, "all 8 episodes of a group begin at the prompt"),
    ],
)
def test_settings_that_compare_nothing_are_refused(fork, size, message):
    with pytest.raises(ConfigError, match=message):
        runner_of(Diary, size=size, fork={"name": "follow_best", **fork})
