"""SampledEpisodes: trajectories are built once and follow their episodes."""

import numpy as np
import pytest
from learner_helpers import fake_episode

from rllib_llm.data import columns, sampled_episodes
from rllib_llm.data.episode_data import episode_data
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import StopPolicy


def sampled(*groups, first=0):
    """Return an episode of three turns for each group; the returns are 0, 1, 2, ..."""
    return SampledEpisodes(
        fake_episode(first + i, group=group, reward=float(first + i))
        for i, group in enumerate(groups)
    )


def assert_aligned(episodes):
    """Check that every trajectory, record and table row is that of its episode."""
    assert len(episodes.data) == len(episodes.trajectories) == len(episodes)
    rows = zip(episodes, episodes.data, episodes.trajectories, strict=True)
    for number, (episode, data, trajectory) in enumerate(rows):
        assert data is episode_data(episode)
        assert trajectory.episode == number
        assert trajectory.task is data.task
        assert trajectory.rewards == list(episode.get_rewards())
    assert episodes.table().returns.tolist() == [e.get_return() for e in episodes]


@pytest.fixture
def built(monkeypatch):
    """Count the trajectories that are built."""
    build, calls = sampled_episodes._trajectory, []

    def count(part, number):
        calls.append(part)
        return build(part, number)

    monkeypatch.setattr(sampled_episodes, "_trajectory", count)
    return calls


def test_trajectories_are_built_once_and_only_if_read(built):
    episodes = sampled(0, 0, 1, 1)
    assert len(episodes) == 4 and episodes[2] in list(episodes) and not built
    table = episodes.table()
    assert episodes.table() is table
    kept = episodes.select([3, 0])
    both = kept + sampled(2, 2, first=7)
    assert len(both.trajectories) == 4
    assert both.of_policy("default_policy").trajectories == both.trajectories
    assert len(built) == 6


def test_selected_and_joined_episodes_keep_their_trajectories():
    episodes = sampled(0, 0, 1, 1)
    episodes.trajectories[3].is_trained = False
    kept = episodes.select([3, 0])
    assert [e.get_return() for e in kept] == [0.0, 3.0]
    assert [t.is_trained for t in kept.trajectories] == [True, False]
    assert episodes.select(range(4)) is episodes
    more = sampled(2, 2, first=7)
    for result in (episodes, kept, more, kept + more, SampledEpisodes() + kept):
        assert_aligned(result)
    assert (kept + more).table().episode.tolist() == [0, 1, 2, 3]


def test_masked_trajectories_stay_but_are_not_trained():
    episodes = sampled(0, 0, 1, 1)
    table = episodes.table()
    episodes.mask([])
    assert episodes.table() is table
    episodes.mask([1, 3])
    assert episodes.table().is_trained.tolist() == [True, False, True, False]
    masked = [episode_data(e).stop_policy is StopPolicy.MASK for e in episodes]
    assert masked == [False, True, False, True]
    # As after a restart, when trajectories are built from the records.
    assert not SampledEpisodes([episodes[1]]).trajectories[0].is_trained


def test_the_trajectories_of_one_policy():
    episodes = sampled(0, 0)
    assert_aligned(episodes.of_policy("default_policy"))
    other = episodes.of_policy("other")
    assert len(other) == 2 and not other.trajectories and not len(other.table())


def test_written_rewards_reach_episodes_logs_and_the_table():
    episodes = sampled(0, 0)
    for episode in episodes:
        episode.custom_data[columns.REWARD_LOG] = []
    before = [list(t.rewards) for t in episodes.trajectories]
    assert episodes.table().returns.tolist() == [0.0, 1.0]
    for number, trajectory in enumerate(episodes.trajectories):
        trajectory.steps = [0, 1, 4]
        trajectory.rewards = [0.5 * number, 0.0, trajectory.rewards[-1] - 0.25]
    episodes.write_rewards(before)
    assert_aligned(episodes)
    assert episodes.table().rewards.tolist() == [0, 0, -0.25, 0.5, 0, 0.75]
    agent = episodes.trajectories[0].agent_id
    logs = [episode.custom_data[columns.REWARD_LOG] for episode in episodes]
    assert logs == [[(5, agent, -0.25)], [(1, agent, 0.5), (5, agent, -0.25)]]


def test_a_table_gets_the_replay_of_its_reader():
    episodes = sampled(0)
    assert episodes.table(replay=dict).replay is dict
    assert episodes.table().replay is None
    assert np.array_equal(episodes.table().task, [0])
