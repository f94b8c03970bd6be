"""Advantages in trees of forked episodes against slow loops over sets of leaves."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import advantages_of, rearranged, trajectory

from rllib_llm.advantages.fork_trees import nodes_of, place_values
from rllib_llm.data.places import Branch
from rllib_llm.data.turn_table import TurnTable

ATOL = 1e-12
ESTIMATORS = ("siblings", "treepo", "treerl")


def leaf(task, rollout, parent=None, turn=0, rewards=(), **fields):
    """Return a leaf that shares the turns before ``turn`` with its parent."""
    before, path = [], ()
    if parent is not None:
        before = parent.rewards[:turn]
        path = tuple(branch for branch in parent.path if branch.turn < turn)
    path = (*path, Branch(turn, rollout))
    return trajectory(task, rollout, rewards=[*before, *rewards], path=path, **fields)


def grown(seed, tasks=3, leaves=12, forks=True):
    """Return trees of uneven shape: several roots, forks of forks, uneven lengths."""
    rng = np.random.default_rng(seed)
    made = []
    for task in range(tasks):
        tree = []
        for rollout in range(leaves):
            parent, turn = None, 0
            if forks and rollout > 1:
                parent = tree[rng.integers(len(tree))]
                turn = int(rng.integers(len(parent)))
            rewards = rng.normal(size=rng.integers(2, 5))
            tree.append(leaf(task, rollout, parent, turn, rewards))
        made += tree
    return TurnTable(made)


def sampler(one, turn):
    """Return the rollout that sampled a turn."""
    return next(b.rollout for b in reversed(one.path) if b.turn <= turn)


def sharing(table, one, turn):
    """Return the leaves that contain a turn of a leaf, by comparing all earlier ones.

    ``turn`` of -1 is the prompt.
    """
    return [
        other
        for other in table.trajectories
        if other.task.group_id == one.task.group_id
        and len(other) > turn
        and all(sampler(one, t) == sampler(other, t) for t in range(turn + 1))
    ]


def value(table, one, turn):
    return np.mean([each.episode_return for each in sharing(table, one, turn)])


def slow_treerl(table):
    made = []
    for one in table.trajectories:
        root = value(table, one, -1)
        for turn in range(len(one)):
            here, above = value(table, one, turn), value(table, one, turn - 1)
            below = len(sharing(table, one, turn))
            made.append(((here - root) + (here - above)) / below**0.5)
    return np.array(made)


def slow_treepo(table, scale="group"):
    made = []
    for one in table.trajectories:
        sets = {
            frozenset(each.task.rollout for each in sharing(table, one, turn))
            for turn in range(-1, len(one))
        }
        group = {t.task.rollout: t for t in sharing(table, one, -1)}
        relative = []
        for members in sets:
            if len(members) < 2 < len(group):
                continue
            returns = np.array([group[i].episode_return for i in members])
            apart = one.episode_return - returns.mean()
            deviation = returns.std(ddof=1) + 1e-6
            relative.append(apart / deviation if scale == "group" else apart)
        made += [np.mean(relative)] * len(one)
    return np.array(made)


def slow_places(table, *, everybody=False):
    """Compare the mean returns of the turns that follow the same turns."""
    made = []
    for one in table.trajectories:
        for turn in range(len(one)):
            at_place = [o for o in sharing(table, one, turn - 1) if len(o) > turn]
            means = {
                sampler(other, turn): value(table, other, turn) for other in at_place
            }
            mine = means[sampler(one, turn)]
            if not everybody and len(means) > 1:
                del means[sampler(one, turn)]
            made.append(mine - np.mean(list(means.values())))
    return np.array(made)


def changed(table, change):
    """Return the table with other rewards of each leaf's last turn, or more turns."""
    made = []
    for one in table.trajectories:
        rewards = change(one)
        fields = {"path": one.path}
        made.append(
            trajectory(one.task.group_id, one.task.rollout, 0, rewards, **fields)
        )
    return TurnTable(made)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_they_are_those_of_slow_loops(seed):
    table = grown(seed)
    assert max(len(one.path) for one in table.trajectories) >= 3  # forks of forks
    for found, wanted in (
        (advantages_of(table, "treerl"), slow_treerl(table)),
        (advantages_of(table, "treepo"), slow_treepo(table)),
        (advantages_of(table, "treepo", scale="none"), slow_treepo(table, "none")),
        (advantages_of(table, "siblings"), slow_places(table)),
        (
            advantages_of(table, "siblings", baseline="mean"),
            slow_places(table, everybody=True),
        ),
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=ATOL)
        assert np.ptp(wanted) > 0.5


def test_a_tree_by_hand():
    """Two leaves share the first turn and return 1 and 0; a third one returns 5."""
    first = leaf(0, 0, rewards=[0, 1])
    table = TurnTable([first, leaf(0, 1, first, 1, [0]), leaf(0, 2, rewards=[5])])
    # Values: prompt 2, shared turn 1/2, the turns after it 1 and 0, the third leaf 5.
    shared = 2 * (0.5 - 2) / 2**0.5
    wanted = [shared, -1 + 0.5, shared, -2 - 0.5, 2 * 3]
    np.testing.assert_allclose(advantages_of(table, "treerl"), wanted, atol=ATOL)
    # Relative to the group -1, -2, 3; within the pair 1/2, -1/2.
    wanted = [-0.25, -0.25, -1.25, -1.25, 3]
    found = advantages_of(table, "treepo", scale="none")
    np.testing.assert_allclose(found, wanted, atol=ATOL)
    # The shared turn is worth 1/2 and the third leaf 5, whichever shares more leaves.
    wanted = [-4.5, 1, -4.5, -1, 4.5]
    np.testing.assert_allclose(advantages_of(table, "siblings"), wanted, atol=ATOL)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_order_of_leaves_does_not_matter(name):
    table = grown(3)
    order = np.random.default_rng(0).permutation(len(table))
    shuffled = rearranged(table, order)
    before = table.split(advantages_of(table, name))
    after = shuffled.split(advantages_of(shuffled, name))
    for place, original in enumerate(order):
        np.testing.assert_allclose(after[place], before[original], atol=ATOL)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_tree_does_not_depend_on_those_of_other_tasks(name):
    table = grown(4)
    whole = advantages_of(table, name)
    for task in range(3):
        mine = np.flatnonzero(table.task == task)
        alone = advantages_of(rearranged(table, mine), name)
        here = table.task[table.owner] == task
        np.testing.assert_allclose(alone, whole[here], atol=ATOL)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_more_return_for_all_leaves_of_a_task_changes_nothing(name):
    table = grown(5)
    shifted = changed(
        table, lambda one: [*one.rewards[:-1], one.rewards[-1] + one.task.group_id + 3]
    )
    np.testing.assert_allclose(
        advantages_of(shifted, name), advantages_of(table, name), atol=1e-9
    )


@pytest.mark.parametrize(
    ("name", "settings", "factor"),
    [
        ("siblings", {}, 4),
        ("siblings", {"scale": "group"}, 1),
        ("treerl", {}, 4),
        ("treepo", {"scale": "none"}, 4),
        ("treepo", {}, 1),
    ],
)
def test_the_unit_of_returns(name, settings, factor):
    table = grown(6)
    scaled = changed(table, lambda one: [4 * r for r in one.rewards])
    found = advantages_of(scaled, name, **settings)
    wanted = factor * advantages_of(table, name, **settings)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)  # eps beside the deviation


def test_without_forks_they_are_statistics_of_the_group():
    table = grown(7, forks=False)
    for scale in ("group", "none"):
        found = advantages_of(table, "treepo", scale=scale)
        wanted = advantages_of(table, "group", scale=scale)
        np.testing.assert_allclose(found, wanted, atol=ATOL)
    # A first turn follows the prompt, so it is compared with the prompt twice.
    wanted = advantages_of(table, "group", scale="none") * np.where(table.turn, 1, 2)
    np.testing.assert_allclose(advantages_of(table, "treerl"), wanted, atol=ATOL)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_turn_more_at_the_end_changes_no_other_turn(name):
    """A turn that only one leaf contains, with the reward 0, is no comparison."""
    table = grown(8)
    longer = changed(table, lambda one: [*one.rewards, 0.0])
    before = table.split(advantages_of(table, name))
    after = longer.split(advantages_of(longer, name))
    centred = longer.split(advantages_of(longer, "group", scale="none"))
    for less, more, own in zip(before, after, centred, strict=True):
        np.testing.assert_allclose(more[:-1], less, atol=ATOL)
        # Alone at its place, above the prompt's value, or as the leaf's other turns.
        new = {"siblings": 0.0, "treerl": own[-1]}.get(name, less[-1])
        assert more[-1] == pytest.approx(new)


def test_shared_turns_that_nobody_forks_count_as_one():
    """The pair shares one turn or three: for TreePO it is the same set of leaves."""

    def tree(turns):
        first = leaf(0, 0, rewards=[*[0] * turns, 1])
        second = leaf(0, 1, first, turns, [0])
        return TurnTable([first, second, leaf(0, 2, rewards=[5])])

    short, long = tree(1), tree(3)
    short, long = (t.split(advantages_of(t, "treepo")) for t in (short, long))
    assert [part[0] for part in short] == pytest.approx([part[0] for part in long])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_returns_give_exactly_nothing(name):
    first = leaf(0, 0, rewards=[0.1, 0.2])
    table = TurnTable([first, *(leaf(0, i, first, 1, [0.2]) for i in (1, 2, 3))])
    assert not advantages_of(table, name).any()


@pytest.mark.parametrize("seed", range(3))
def test_a_place_is_worth_the_mean_of_what_goes_on_from_it(seed):
    table, expected = grown(seed), []
    for one in table.trajectories:
        for turn in range(len(one)):
            others = [o for o in sharing(table, one, turn - 1) if len(o) > turn]
            expected.append(np.mean([o.episode_return for o in others]))
    found = place_values(nodes_of(table), table.returns[table.owner])
    np.testing.assert_allclose(found, expected, atol=ATOL)


def team_leaf(rollout, parent, fork_step, rewards):
    """Return the trajectories of two agents who act in turn, agent 0 first."""
    path = (Branch(0, rollout),)
    if parent is not None:
        path = (*(b for b in parent[0].path if b.turn < fork_step),)
        path = (*path, Branch(fork_step, rollout))
    made = []
    for agent in (0, 1):
        steps = list(range(agent, len(rewards), 2))
        fields = {"path": path, "steps": steps}
        mine = [rewards[step] for step in steps]
        made.append(trajectory(0, rollout, agent, mine, **fields))
    return made


def test_agents_compare_what_followed_the_same_words():
    """Agent 1 forks at step 1; agent 0's next turns then follow different words."""
    root = team_leaf(0, None, 0, [0, 0, 1, 0])
    other = team_leaf(1, root, 1, [0, 0, 5, 0])  # another word of agent 1
    third = team_leaf(
        2, root, 2, [0, 0, 3, 0]
    )  # another answer of agent 0 to the first
    fourth = team_leaf(3, other, 3, [0, 0, 5, 2])  # another last word of agent 1
    table = TurnTable([*root, *other, *third, *fourth])
    nodes = nodes_of(table)
    split = dict(zip("rRoOtTfF", table.split(nodes.of_turn), strict=True))
    # Turns of one agent that were sampled once are one node.
    assert split["r"][0] == split["o"][0] == split["t"][0] == split["f"][0]
    assert split["R"][0] == split["T"][0] and split["O"][0] == split["F"][0]
    assert split["o"][1] == split["f"][1]
    assert len({split[key][1] for key in "rot"}) == 3
    place = {key: nodes.places[of] for key, of in split.items()}
    # Agent 0's second turn: r and t answer the root's word, o and f the other one.
    assert place["r"][1] == place["t"][1] != place["o"][1] == place["f"][1]
    assert place["R"][0] == place["O"][0]
    advantages = dict(
        zip("rRoOtTfF", table.split(advantages_of(table, "siblings")), strict=True)
    )
    # r returns 1 and t 3 after the same words; o's turn was sampled alone.
    np.testing.assert_allclose(advantages["r"], [0, 1 - 3], atol=ATOL)
    np.testing.assert_allclose(advantages["t"], [0, 3 - 1], atol=ATOL)
    np.testing.assert_allclose(advantages["o"], [0, 0], atol=ATOL)
    # Agent 1's first word: 0 on average after the root's, (0 + 2) / 2 after the other.
    np.testing.assert_allclose(advantages["R"], [0 - 1, 0], atol=ATOL)
    np.testing.assert_allclose(advantages["F"], [1 - 0, 2 - 0], atol=ATOL)
    # The team's return is that of both: (1 + 0) and (3 + 0) for r and t.
    summed = advantages_of(table, "siblings", team="sum")
    np.testing.assert_allclose(table.split(summed)[0], [0, 1 - 3], atol=ATOL)
    shared = advantages_of(table, "siblings", team="mean")
    np.testing.assert_allclose(shared, summed / 2, atol=ATOL)
    # Agent 1's first word, by what agent 0 got after it: (1 + 3) / 2 and (5 + 7) / 2.
    np.testing.assert_allclose(table.split(summed)[1], [2 - 6, 0], atol=ATOL)
