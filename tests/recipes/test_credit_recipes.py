"""Shipped recipes of advantage estimators train as their papers describe.

That they load and dry-run is tested with all others in tests/cli/test_cli_light.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.estimators.anchor import anchors
from rllib_llm.advantages.fork_trees import nodes_of
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.components.registry import bind
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.recipes import load_recipe

SMALL = (
    "language_model.tiny={hidden_size: 32, intermediate_size: 64}",
    "env_runners.num_envs_per_env_runner=32",
    "rollouts.episodes_per_iteration=32",
    "sft={demonstrations: 200, lr: 1e-2}",
    "training.minibatch_size=16",
)
# Without it, an untrained model's groups have uniform rewards and zero advantages.
KEPT = (
    "evaluation.evaluation_interval=null",
    "training.drop_zero_variance_groups=false",
)
LAKE = (*KEPT, "env_config.size=3")
# As in docs/forks.md.
BRANCHING = (
    "rollouts.group_size=16",
    "rollouts.fork={name: follow_best, width: 4}",
    "training.fork_training=tree",
    "training.advantage_estimator={name: siblings, baseline: mean, scale: group, "
    "team: mean}",
)


def by_agent(table):
    return combined_keys(table.task, table.agent)[table.owner]


def centred(table):
    """Returns less the mean of the agent's rollouts of the task. [M]"""
    keys = combined_keys(table.task, table.agent)
    means = np.bincount(keys, table.returns) / np.bincount(keys)
    return (table.returns - means[keys])[table.owner]


def sums_to_nothing(values, keys):
    assert np.abs(np.bincount(keys, values)).max() < 1e-4


# What each is about ------------------------------------------------------------------


def gigpo(table, advantages):
    keys = anchors(table)
    alone = np.bincount(keys)[keys] == 1
    by_place = bind("advantage_estimator", "anchor").call(table)
    assert alone.any() and not by_place[alone].any() and by_place[~alone].any()
    np.testing.assert_allclose(advantages, centred(table) + by_place, atol=1e-5)


def mt_grpo(table, advantages):
    """The first turn's advantage exceeds the second's by that of its own reward."""
    first, second = table.turn == 0, table.turn == 1
    went_on = np.isin(table.owner[first], table.owner[second])
    early = group_advantages(table.rewards[first], table.task, scale="group")
    own = advantages[first][went_on] - advantages[second]
    np.testing.assert_allclose(own, early[went_on], atol=1e-5)
    assert np.abs(own).max() > 0.1


def reinforce_pp(table, advantages):
    tokens = np.repeat(advantages, table.turn_tokens)
    assert abs(tokens.mean()) < 1e-4 and abs(tokens.std(ddof=1) - 1) < 1e-3


def rloo(table, advantages):
    np.testing.assert_allclose(advantages, centred(table) * 8 / 7, atol=1e-5)


def dr_grpo(table, advantages):
    np.testing.assert_allclose(advantages, centred(table), atol=1e-5)


def lite_ppo(table, advantages):
    spread = table.returns.std(ddof=1) + 1e-6
    np.testing.assert_allclose(advantages, centred(table) / spread, atol=1e-5)


def maxrl(table, advantages):
    sums_to_nothing(advantages[table.turn == 0], table.task)
    solvable = np.isin(table.task, table.task[table.returns > 0])
    failed = solvable & (table.returns == 0)
    assert failed.any()
    np.testing.assert_allclose(advantages[failed[table.owner]], -1.0, atol=1e-5)


def tree_rl(table, advantages):
    """A turn has one advantage in all its leaves; siblings differ."""
    nodes = nodes_of(table)
    assert nodes.num_leaves.max() == 8
    per_node = nodes.means(advantages)[nodes.of_turn]
    np.testing.assert_allclose(advantages, per_node, atol=1e-5)
    # Weighted by their leaves, siblings' gains over their place sum to nothing.
    sums_to_nothing(
        (advantages * np.sqrt(nodes.num_leaves[nodes.of_turn]))[table.turn == 0],
        table.task,
    )


def magrpo(table, advantages):
    rounds = combined_keys(table.episode[table.owner], table.turn)
    means = np.bincount(rounds, advantages) / np.bincount(rounds)
    np.testing.assert_allclose(advantages, means[rounds], atol=1e-5)


def magrpo_cross(table, advantages):
    sums_to_nothing(advantages, by_agent(table))
    teams = advantages.reshape(-1, 3)  # votes for another word have other advantages
    assert np.ptp(teams, axis=1).max() > 0.01


def at_grpo(table, advantages):
    owner = table.owner
    groups = combined_keys(table.task[owner], table.turn, table.agent[owner])
    sums_to_nothing(advantages, groups)
    assert len(np.unique(groups)) > len(np.unique(by_agent(table)))


def c3(table, advantages):
    """Each message against the others of its place, by the mean return of the team."""
    nodes = nodes_of(table)
    team = np.bincount(table.episode, table.returns) / np.bincount(table.episode)
    values = nodes.means(team[table.episode][table.owner])
    alone, places = np.bincount(nodes.places) == 1, nodes.places[nodes.of_turn]
    assert not advantages[alone[places]].any()
    for turn in np.flatnonzero(~alone[places]):
        at_place = nodes.places == places[turn]
        at_place[nodes.of_turn[turn]] = False
        expected = values[nodes.of_turn[turn]] - values[at_place].mean()
        assert advantages[turn] == pytest.approx(expected, abs=1e-5)
    # Both agents are compared: four messages of a task, and four walks after one.
    sizes = np.bincount(nodes.places)[places]
    owner = table.agent[table.owner]
    assert sizes[owner == 0].max() >= 4 and sizes[owner == 1].max() == 4


def places_of_agents(table):
    """The past of each turn: what everybody sampled before it, by episode and step."""
    past = []
    for owner, turn in zip(table.owner, table.turn, strict=True):
        one = table.trajectories[owner]
        step = one.steps[turn]
        before = tuple(branch for branch in one.path if branch.turn < step)
        past.append(repr((one.task.group_id, one.agent, step, before)))
    return combined_keys(np.unique(past, return_inverse=True)[1])


def at_grpo_branching(table, advantages):
    """Standard scores among the replies that were sampled at one place."""
    places, team = places_of_agents(table), np.bincount(table.episode, table.returns)
    replies = nodes_of(table).of_turn  # a reply that is followed is in several episodes
    values = nodes_of(table).means(team[table.episode][table.owner] / 2)
    compared = {0: 0, 1: 0}
    for place in np.unique(places):
        here = np.flatnonzero(places == place)
        sampled = np.unique(replies[here])
        spread = values[sampled].std(ddof=1) if len(sampled) > 1 else 0.0
        for turn in here:
            expected = 0.0
            if spread > 1e-9:
                above = values[replies[turn]] - values[sampled].mean()
                expected = above / (spread + 1e-6)
            assert advantages[turn] == pytest.approx(expected, abs=1e-4)
        agent = int(table.agent[table.owner[here[0]]])
        compared[agent] = max(compared[agent], len(sampled))
    # Both agents are compared, the second one after the best word of the first.
    assert compared[0] >= 4 and compared[1] == 4


def treepo(table, advantages):
    """The mean of the standard scores in the group and in each subtree of a leaf."""
    returns, taken = table.returns, []
    for number, one in enumerate(table.trajectories):
        sets = set()
        for turn in range(-1, len(one)):
            past = one.path[: sum(b.turn <= turn for b in one.path)]
            sets.add(
                tuple(
                    i
                    for i, other in enumerate(table.trajectories)
                    if other.task.group_id == one.task.group_id and len(other) > turn
                    if other.path[: sum(b.turn <= turn for b in other.path)] == past
                )
            )
        scores = []
        for leaves in sets:
            among = returns[list(leaves)]
            if len(leaves) > 1:
                spread = among.std(ddof=1) + 1e-6
                scores.append((returns[number] - among.mean()) / spread)
        taken.append(len(scores))
        mine = advantages[table.owner == number]
        np.testing.assert_allclose(mine, np.mean(scores), atol=1e-3)
    assert max(taken) >= 4  # a group of 16 is a binary tree of four turns


def dr_mas(table, advantages):
    sums_to_nothing(advantages, by_agent(table))
    spread = [
        advantages[by_agent(table) == k].std(ddof=1) for k in set(by_agent(table))
    ]
    assert all(s < 1e-9 or abs(s - 1) < 1e-3 for s in spread) and max(spread) > 0.9


def marshal(table, advantages):
    sums_to_nothing(advantages, table.agent[table.owner])
    assert abs(advantages.std(ddof=1) - 1) < 1e-3


CASES = {
    "gigpo": (gigpo, LAKE),
    "mt_grpo": (mt_grpo, KEPT),
    "reinforce_pp": (reinforce_pp, LAKE),
    "reinforce_pp_baseline": (reinforce_pp, LAKE),
    "rloo": (rloo, LAKE),
    "loop": (rloo, LAKE),
    "dr_grpo": (dr_grpo, LAKE),
    "lite_ppo": (lite_ppo, LAKE),
    "maxrl": (maxrl, LAKE),
    "tree_rl": (tree_rl, LAKE),
    "treepo": (treepo, LAKE),
    "magrpo": (magrpo, KEPT),
    "magrpo_cross": (magrpo_cross, KEPT),
    "at_grpo": (at_grpo, KEPT),
    "at_grpo/branching": (at_grpo_branching, (*KEPT, *BRANCHING)),
    "c3": (c3, KEPT),
    "dr_mas": (dr_mas, KEPT),
    "marshal": (marshal, ("league.exploitability_interval=0",)),
}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("name", CASES)
def test_two_iterations_give_the_advantages_of_the_paper(
    ray_session, monkeypatch, name
):
    check, more = CASES[name]
    recipe = load_recipe(name.partition("/")[0], (*SMALL, *more))
    algo = recipe.config.build_algo()
    give, with_advantages = algo._set_advantages, []

    def give_and_keep(episodes):
        give(episodes)
        found = algo._compared(episodes)
        pairs = zip(found.data, found.trajectories, strict=True)
        per_turn = [np.broadcast_to(data.advantage, len(one)) for data, one in pairs]
        with_advantages.append((found.table(), per_turn))

    monkeypatch.setattr(algo, "_set_advantages", give_and_keep)
    results = [algo.train() for _ in range(2)]
    algo.stop()
    assert len(with_advantages) == 2
    table = TurnTable([t for made, _ in with_advantages for t in made.trajectories])
    assert len(table) >= 64 and np.abs(np.concatenate(with_advantages[0][1])).max() > 0
    for made, per_turn in with_advantages:
        check(made, np.concatenate(per_turn))
    for learned in results[-1]["learners"].values():
        if isinstance(learned, dict) and "grad_norm" in learned:
            assert np.isfinite(learned["grad_norm"])
