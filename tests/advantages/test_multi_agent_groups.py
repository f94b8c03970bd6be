"""Keys and group-relative advantages against loops over messages."""

import numpy as np
import pytest

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.advantages.multi_agent_groups import (
    MESSAGE_GROUPS,
    align_invocations,
    broadcast_advantages,
    hierarchical_keys,
    message_group_advantages,
    message_group_keys,
)

ATOL = 1e-9


def make_messages(seed=0, tasks=3, rollouts=4):
    """Unequal numbers of calls: agent 1 is called 0 to 3 times in a rollout."""
    rng = np.random.default_rng(seed)
    rows = []
    for rollout in range(tasks * rollouts):
        team_return = rng.normal()
        for agent, calls in ((0, 1), (1, int(rng.integers(4)))):
            for turn in range(calls):
                rows.append((rollout // rollouts, rollout, agent, turn, team_return))
    columns = np.array(rows).T
    names = ("tasks", "rollouts", "agents", "turns")
    ids = {n: c.astype(int) for n, c in zip(names, columns[:4], strict=True)}
    return columns[4], ids


def slow_advantages(returns, ids, group_by, scale):
    """Write each message's group out, as the papers define it."""
    key = {
        "task": ("tasks",),
        "agent": ("tasks", "agents"),
        "turn": ("tasks", "turns", "agents"),
    }[group_by]
    advantages = []
    for k in range(len(returns)):
        members = [
            m
            for m in range(len(returns))
            if all(ids[name][m] == ids[name][k] for name in key)
        ]
        if group_by == "task":  # a rollout is one sample
            once = {ids["rollouts"][m]: returns[m] for m in members}
            sample = list(once.values())
        else:  # every invocation is one
            sample = [returns[m] for m in members]
        if len(sample) < 2:
            advantages.append(0.0)
            continue
        divisor = np.std(sample, ddof=1) + 1e-6 if scale == "group" else 1.0
        advantages.append((returns[k] - np.mean(sample)) / divisor)
    return np.array(advantages)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("group_by", MESSAGE_GROUPS)
@pytest.mark.parametrize("scale", ["none", "group"])
def test_message_advantages_equal_the_loop(seed, group_by, scale):
    returns, ids = make_messages(seed)
    got = message_group_advantages(returns, **ids, group_by=group_by, scale=scale)
    expected = slow_advantages(returns, ids, group_by, scale)
    np.testing.assert_allclose(got, expected, atol=ATOL)

    order = np.random.default_rng(seed).permutation(len(returns))
    shuffled = {name: column[order] for name, column in ids.items()}
    permuted = message_group_advantages(
        returns[order], **shuffled, group_by=group_by, scale=scale
    )
    np.testing.assert_allclose(permuted, got[order], atol=ATOL)

    rows = ids["tasks"] == 1  # other tasks change nothing
    one = {name: column[rows] for name, column in ids.items()}
    alone = message_group_advantages(
        returns[rows], **one, group_by=group_by, scale=scale
    )
    np.testing.assert_allclose(alone, got[rows], atol=ATOL)


def test_an_agent_called_more_often_in_good_rollouts_has_a_higher_baseline():
    """Dr. MAS: each invocation is a sample; the vanilla key counts rollouts."""
    returns = np.array([1.0, 1.0, 1.0, 0.0])
    ids = {
        "tasks": np.zeros(4, int),
        "rollouts": np.array([0, 0, 0, 1]),
        "agents": np.ones(4, int),
        "turns": np.array([0, 1, 2, 0]),
    }
    per_agent = message_group_advantages(returns, **ids, scale="none")
    np.testing.assert_allclose(per_agent, [0.25, 0.25, 0.25, -0.75], atol=ATOL)
    vanilla = message_group_advantages(returns, **ids, scale="none", group_by="task")
    np.testing.assert_allclose(vanilla, [0.5, 0.5, 0.5, -0.5], atol=ATOL)


def test_a_single_invocation_gets_nothing():
    """Dr. MAS's code would return the raw 5.0."""
    ids = {n: np.zeros(1, int) for n in ("tasks", "rollouts", "agents", "turns")}
    for group_by in MESSAGE_GROUPS:
        got = message_group_advantages([5.0], **ids, group_by=group_by)
        assert got.tolist() == [0.0]


@pytest.mark.parametrize("group_by", ["task", "agent"])
@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_one_agent_with_one_message_is_grpo(group_by, scale):
    rng = np.random.default_rng(1)
    returns, tasks = rng.normal(size=12), np.repeat([0, 1, 2], 4)
    got = message_group_advantages(
        returns,
        tasks=tasks,
        agents=np.zeros(12, int),
        turns=np.zeros(12, int),
        rollouts=np.arange(12),
        group_by=group_by,
        scale=scale,
    )
    assert (got == group_advantages(returns, tasks, scale=scale)).all()


def test_roles_of_different_means_are_centred_apart():
    """With the agent key, a constant difference between roles vanishes."""
    returns, ids = make_messages(2)
    shifted = returns + 10.0 * ids["agents"]
    got = message_group_advantages(shifted, **ids, scale="none")
    expected = message_group_advantages(returns, **ids, scale="none")
    np.testing.assert_allclose(got, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"group_by": "agnet"}, "Did you mean 'agent'"),
        ({"returns": [1.0, 2.0]}, "Rollout 7 has more than one return .message 1"),
        ({"tasks": [0, 1]}, "Rollout 7 has more than one task"),
        ({"agents": [0]}, "Shapes differ"),
        ({"returns": [1.0, np.nan], "group_by": "agent"}, r"returns\[1\] is nan"),
    ],
)
def test_errors_name_the_value(changed, message):
    arguments = {
        "returns": [1.0, 1.0],
        "tasks": [0, 0],
        "agents": [0, 1],
        "turns": [0, 0],
        "rollouts": [7, 7],
        "group_by": "task",
    } | changed
    with pytest.raises(ValueError, match=message):
        message_group_advantages(**arguments)


def test_keys_are_sorted_and_without_gaps():
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(5, size=40), rng.choice(["x", "y"], size=40), np.arange(40)
    for columns in ((a,), (a, b), (b, a), (a, b, c % 3)):
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        rank = {row: i for i, row in enumerate(sorted(set(rows)))}
        assert combined_keys(*columns).tolist() == [rank[row] for row in rows]
    assert combined_keys([]).shape == (0,)
    with pytest.raises(ValueError, match=r"column 0 \[2\], column 1 \[1\]"):
        combined_keys([1, 2], [3])
    with pytest.raises(ValueError, match="at least one"):
        combined_keys()
    assert message_group_keys("turn", [0, 0], [1, 0], [0, 1]).tolist() == [0, 1]


def test_broadcast_gives_each_message_its_main_rollouts_advantage():
    got = broadcast_advantages([1.0, -2.0], ["b", "a"], ["a", "b", "b", "a"])
    assert got.tolist() == [-2.0, 1.0, 1.0, -2.0]
    assert broadcast_advantages([1.0], [0], []).shape == (0,)
    with pytest.raises(ValueError, match="without an advantage: .'c'"):
        broadcast_advantages([1.0], ["a"], ["c"])
    with pytest.raises(ValueError, match="2 entries but 1 distinct"):
        broadcast_advantages([1.0, 2.0], [3, 3], [3])
    with pytest.raises(ValueError, match=r"advantages \[1\], rollouts \[2\]"):
        broadcast_advantages([1.0], [3, 4], [3])


def test_broadcast_of_planner_advantages_is_grpo_over_planners():
    """MATPO: workers change nothing in the statistics, however many there are."""
    returns, tasks = np.array([1.0, 0.0, 0.0, 1.0, 1.0]), [0, 0, 0, 1, 1]
    planner = group_advantages(returns, tasks, scale="group")
    got = broadcast_advantages(planner, np.arange(5), [0, 0, 0, 2, 4])
    np.testing.assert_allclose(got, planner[[0, 0, 0, 2, 4]])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_aligned_calls_weigh_rollouts_alike(count):
    rollouts = np.array([3, 3, 3, 5, 8, 8])
    chosen = align_invocations(rollouts, count, np.random.default_rng(0))
    for rollout in (3, 5, 8):
        assert (rollouts[chosen] == rollout).sum() == count
    for rollout, calls in ((3, 3), (5, 1), (8, 2)):
        # No call is repeated before all were taken.
        distinct = len(set(chosen[rollouts[chosen] == rollout]))
        assert distinct == min(calls, count)
    again = align_invocations(rollouts, count, np.random.default_rng(0))
    assert (again == chosen).all()


def test_alignment_edges():
    rng = np.random.default_rng(0)
    assert align_invocations([], 4, rng).shape == (0,)
    drawn = {tuple(align_invocations([0, 0, 0], 1, rng)) for _ in range(50)}
    assert drawn == {(0,), (1,), (2,)}
    with pytest.raises(ValueError, match="count is 0"):
        align_invocations([0], 0, rng)


def test_hierarchical_groups():
    """Two proposals for task 0, three solvers each; one proposal for task 1."""
    proposals = np.array([10, 11, 10, 10, 10, 11, 11, 11, 20, 20, 20])
    is_proposer = np.array([1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0], bool)
    tasks = np.array([0] * 8 + [1] * 3)
    returns = np.array([0.2, 0.6, 1, 0, 0, 1, 1, 1, 0.9, 1.0, 0.0])
    keys = hierarchical_keys(tasks, proposals, is_proposer)
    got = group_advantages(returns, keys)
    expected = [-0.2, 0.2, 2 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0.0, 0.5, -0.5]
    np.testing.assert_allclose(got, expected, atol=ATOL)
    with pytest.raises(ValueError, match="is_proposer has dtype int"):
        hierarchical_keys([0], [0], [1])
    with pytest.raises(ValueError, match="Shapes differ"):
        hierarchical_keys([0], [0, 1], [True])
