"""Each advantage estimator against a slow loop over turns, written from its paper."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
import pytest
from component_helpers import advantages_of, random_table, rearranged, trajectory

from rllib_llm.advantages.estimators.recent_returns import History
from rllib_llm.advantages.role_baselines import per_player_advantages
from rllib_llm.data.turn_table import TurnTable

ATOL = 1e-9


@pytest.fixture(params=[0, 1])
def table(request):
    return random_table(request.param)


def turns_of(table):
    """(trajectory, turn, discounted return from it on) of every turn."""
    for one in table.trajectories:
        for t in range(len(one)):
            yield one, t


def to_go(one, t, discount):
    return sum(discount**k * r for k, r in enumerate(one.rewards[t:]))


def relative(values, k, scale="none"):
    """Entry k less the mean, over the deviation if so asked; 0 if it is alone."""
    values = np.asarray(values, np.float64)
    if len(values) < 2:
        return 0.0
    centred = values[k] - values.mean()
    return centred / (values.std(ddof=1) + 1e-6) if scale == "group" else centred


def same_agent(table, one):
    """An agent's trajectories of one task."""
    return [
        other
        for other in table.trajectories
        if other.task.group_id == one.task.group_id and other.agent == one.agent
    ]


def check(table, expected, name, **settings):
    found = advantages_of(table, name, **settings)
    np.testing.assert_allclose(found, expected, atol=ATOL, rtol=0)
    assert np.ptp(found) > 0.01  # the loop is not about zeros


# One agent's rollouts ----------------------------------------------------------------


@pytest.mark.parametrize("scale", ["none", "group"])
def test_a_turn_may_count_once_in_group_statistics(table, scale):
    expected = []
    for one, _ in turns_of(table):
        sample = [
            o.episode_return for o in same_agent(table, one) for _ in range(len(o))
        ]
        divisor = np.std(sample, ddof=1) + 1e-6 if scale == "group" else 1.0
        expected.append((one.episode_return - np.mean(sample)) / divisor)
    check(table, expected, "group", unit="turn", scale=scale)


@pytest.mark.parametrize("scale", ["none", "group"])
def test_anchor_compares_turns_with_equal_observations(table, scale):
    expected = []
    for one, t in turns_of(table):
        cluster = [
            (other, u)
            for other in same_agent(table, one)
            for u in range(len(other))
            if other.observations[u] == one.observations[t]
        ]
        k = [other is one and u == t for other, u in cluster].index(True)
        expected.append(relative([to_go(o, u, 0.9) for o, u in cluster], k, scale))
    check(table, expected, "anchor", discount=0.9, scale=scale)


def test_anchor_clusters_similar_observations():
    observations = ["you see a red door", "you see a blue door", "there is a wall"]
    alike = SequenceMatcher(None, *observations[:2]).ratio()
    rewards = [1.0, 0.0, 5.0]
    table = TurnTable(
        trajectory(rollout=i, rewards=[r], observations=[observations[i]])
        for i, r in enumerate(rewards)
    )
    assert not advantages_of(table, "anchor").any()  # all are different
    found = advantages_of(table, "anchor", similarity=alike)
    np.testing.assert_allclose(found, [0.5, -0.5, 0.0], atol=ATOL)
    assert not advantages_of(table, "anchor", similarity=alike + 1e-6).any()


@pytest.mark.parametrize("scale", ["none", "group"])
def test_turn_gives_early_turns_separate_advantages(table, scale):
    boundary, coef = 2, 0.7
    expected = []
    for one, t in turns_of(table):
        others = same_agent(table, one)
        k = others.index(one)
        early = [sum(o.rewards[:boundary]) for o in others]
        late = [sum(o.rewards[boundary:]) for o in others]
        whole = [o.episode_return for o in others]
        if len(one) <= boundary:
            expected.append(relative(whole, k, scale))
            continue
        advantages = relative(late, k, scale)
        if t < boundary:
            advantages += coef * relative(early, k, scale)
        expected.append(advantages)
    check(table, expected, "turn", boundary=boundary, coef=coef, scale=scale)


@pytest.mark.parametrize("baseline", ["none", "batch"])
def test_return_is_what_follows(table, baseline):
    expected = np.array([to_go(one, t, 0.8) for one, t in turns_of(table)])
    if baseline == "batch":
        expected = expected - expected.mean()
    check(table, expected, "return", discount=0.8, baseline=baseline)


@pytest.mark.parametrize("of", ["return", "success"])
def test_maxrl_divides_by_the_mean(table, of):
    def value(one):
        return one.episode_return if of == "return" else float(one.success)

    expected = []
    for one, _ in turns_of(table):
        mean = np.mean([value(o) for o in same_agent(table, one)])
        expected.append((value(one) - mean) / mean if mean > 0 else 0.0)
    check(table, expected, "maxrl", of=of)


def test_maxrl_of_successes_only_sums_to_the_log_likelihood_gradient():
    # A_k = R_k / mean - 1: over the group, the successes' scores averaged, less all.
    table = TurnTable(trajectory(rollout=i, rewards=[i < 2]) for i in range(8))
    np.testing.assert_allclose(
        advantages_of(table, "maxrl"), [3.0, 3.0] + [-1.0] * 6, atol=ATOL
    )


@pytest.mark.parametrize("statistic", ["median", "mean"])
@pytest.mark.parametrize("of", ["agent", "task"])
def test_history_compares_with_groups_before(of, statistic):
    first, second = random_table(3), random_table(4)
    advantages = History(statistic=statistic, of=of)
    advantages(first)
    expected = []
    for one, _ in turns_of(second):
        before = {}
        for o in first.trajectories:
            if o.agent == one.agent:
                before.setdefault(o.task.seed, []).append(o.episode_return)
        if of == "task":
            before = {one.task.seed: before[one.task.seed]}
        means = [np.mean(values) for values in before.values()]
        expected.append(one.episode_return - getattr(np, statistic)(means))
    np.testing.assert_allclose(advantages(second), expected, atol=ATOL, rtol=0)


def test_history_keeps_a_window_and_survives_a_checkpoint():
    advantages = History(window=3)
    for seed in range(4):
        advantages(random_table(seed))
    assert [len(kept) for kept in advantages.means.values()] == [3, 3]
    resumed = History(window=3)
    resumed.set_state(advantages.get_state())
    table = random_table(9)
    np.testing.assert_array_equal(resumed(table), advantages(table))
    assert resumed.get_state() == advantages.get_state()


# Teams -------------------------------------------------------------------------------


@pytest.mark.parametrize("team", ["mean", "sum"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "none"])
def test_magrpo_compares_rounds_of_the_team(table, team, baseline):
    # In two episodes an agent never acted.
    table = rearranged(table, [i for i in range(len(table)) if i not in (1, 10)])

    def team_return(episode, t):
        members = [o for o in table.trajectories if o.episode == episode]
        last = max(map(len, members))
        if t >= last:
            return None
        rounds = [
            sum(o.rewards[u] for o in members if u < len(o))
            / (len(members) if team == "mean" else 1)
            for u in range(t, last)
        ]
        return sum(0.9**k * r for k, r in enumerate(rounds))

    expected = []
    for one, t in turns_of(table):
        episodes = {
            o.episode
            for o in table.trajectories
            if o.task.group_id == one.task.group_id
        }
        others = [team_return(e, t) for e in episodes if e != one.episode]
        others = [value for value in others if value is not None]
        mine = team_return(one.episode, t)
        if baseline == "none":
            expected.append(mine)
        elif not others:
            expected.append(0.0)
        else:
            sample = [mine, *others] if baseline == "mean" else others
            expected.append(mine - np.mean(sample))
    check(table, expected, "magrpo", team=team, baseline=baseline)


def test_per_player_is_marshals():
    table = random_table(2)
    owner = table.owner
    expected = per_player_advantages(
        table.rewards, table.episode[owner], table.agent[owner], np.zeros(len(owner))
    )
    check(table, expected, "per_player")
    centred = advantages_of(table, "per_player", normalise=False)
    for agent in (0, 1):
        assert abs(centred[table.agent[owner] == agent].sum()) < 1e-8


@pytest.mark.parametrize("leader", ["agent_1", "agent_0"])
def test_broadcast_gives_all_agents_the_leaders_advantage(table, leader):
    expected = []
    for one, _ in turns_of(table):
        leads = [
            o
            for o in table.trajectories
            if o.agent_id == leader and o.task.group_id == one.task.group_id
        ]
        k = [o.episode for o in leads].index(one.episode)
        expected.append(relative([o.episode_return for o in leads], k, "group"))
    check(table, expected, "broadcast", leader=leader)


def test_broadcast_gives_nothing_in_episodes_without_the_leader():
    table = random_table(5)
    kept = [
        i
        for i, one in enumerate(table.trajectories)
        if not (one.agent == 0 and one.episode == 0)
    ]
    table = rearranged(table, kept)
    found = advantages_of(table, "broadcast", leader="agent_0")
    silent = table.episode[table.owner] == 0
    assert silent.any() and not found[silent].any() and found[~silent].any()


def test_a_role_stands_for_the_one_who_has_it():
    table = random_table(1)
    names = {0: "planner_0", 1: "worker_0"}
    for one in table.trajectories:
        one.agent_id = names[one.agent]
    np.testing.assert_array_equal(
        advantages_of(table, "broadcast", leader="planner"),
        advantages_of(table, "broadcast", leader="planner_0"),
    )


def test_hierarchical_compares_solvers_within_an_episode():
    table = random_table(6, agents=3)
    expected = []
    for one, _ in turns_of(table):
        others = [
            o
            for o in table.trajectories
            if (o.agent == 1) == (one.agent == 1)
            and o.task.group_id == one.task.group_id
            and (one.agent == 1 or o.episode == one.episode)
        ]
        k = others.index(one)
        expected.append(relative([o.episode_return for o in others], k, "group"))
    check(table, expected, "hierarchical", proposer="agent_1")
