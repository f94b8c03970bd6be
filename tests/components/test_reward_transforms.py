"""Transforms of summed rewards, against slow loops and by hand."""

import math

import numpy as np
import pytest
from component_helpers import random_table, rearranged, trajectory

from rllib_llm.components.registry import COMPONENTS, bind
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.errors import ConfigError
from rllib_llm.rewards import allocation
from rllib_llm.rewards.combine import Rewards
from rllib_llm.rewards.efficiency import tool_efficiency

TRANSFORMS = tuple(COMPONENTS["reward_transform"])
NEEDED = {"discount": {"discount": 0.5}}


def changed(name, table, **settings):
    given = {**NEEDED.get(name, {}), **settings}
    return bind("reward_transform", {"name": name, **given}).call(table)


def table_with_tools(**kwargs):
    table = random_table(**kwargs)
    rng = np.random.default_rng(5)
    for t in table.trajectories:
        t.infos = [
            {"tool": rng.choice([None, "search"]), "tool_error": False}
            for _ in t.rewards
        ]
    return table


def user(rollout, calls, solved, reward=1.0, task=0):
    """A rollout that calls a tool so often and then answers."""
    turns = calls + 1
    infos = [{"tool": "search"}] * calls + [{"tool": None}]
    rewards = [0.0] * calls + [reward]
    return trajectory(
        task,
        rollout,
        rewards=rewards,
        infos=infos,
        success=solved,
        steps=[*range(turns)],
    )


# Single ones -------------------------------------------------------------------------


def test_later_turns_are_worth_less():
    table = TurnTable(
        [trajectory(rewards=[1, 1, 1]), trajectory(rollout=1, rewards=[4])]
    )
    assert changed("discount", table).tolist() == [1, 0.5, 0.25, 4]


def test_renorm_takes_half_of_both_signals():
    """PPR: the mean of r_p - 1/2 over turns with a search, r_o - 1/2 in the last."""
    of = user(0, 2, True)
    of.rewards = [0.45, 0.1, 1.0]  # scores of 0.9 and 0.2, over two
    got = changed("centre", TurnTable([of]))
    np.testing.assert_allclose(got, [0.2, -0.15, 0.5])
    of.rewards = [0.9, 0.2, 1.0]
    got = changed("centre", TurnTable([of]), aggregate="sum")
    np.testing.assert_allclose(got, [0.4, -0.3, 0.5])
    # However many good steps a failed run has, its return is not positive.
    for searches in (1, 2, 9):
        of = user(0, searches, True)
        of.rewards = [1.0 / searches] * searches + [0.0]
        assert changed("centre", TurnTable([of])).sum() == pytest.approx(0.0)
    with pytest.raises(ConfigError, match="'tool'"):
        changed("centre", random_table())


def slow_group(table, unit, scale):
    new = []
    for me in table.trajectories:
        same = [
            t
            for t in table.trajectories
            if (t.task.group_id, t.agent) == (me.task.group_id, me.agent)
        ]
        every = [r for t in same for r in t.rewards]
        of = every if unit == "turn" else [sum(t.rewards) for t in same]
        mean, std = np.mean(of), np.std(of) if scale == "std" else 1.0
        std = std if std > 1e-9 else 1.0
        if unit == "turn":
            new += [(r - mean) / std for r in me.rewards]
        else:
            part = [r / std for r in me.rewards]
            part[-1] -= mean / std
            new += part
    return new


@pytest.mark.parametrize("unit", ["trajectory", "turn"])
@pytest.mark.parametrize("scale", ["std", "none"])
def test_rewards_are_standardised_in_groups(unit, scale):
    table = random_table()
    got = changed("group_normalise", table, unit=unit, scale=scale)
    np.testing.assert_allclose(got, slow_group(table, unit, scale), atol=1e-12)
    flat = changed("group_normalise", random_table(flat=True), unit=unit, scale=scale)
    alone = random_table(rollouts=1)
    returns = alone.sum_turns(changed("group_normalise", alone, scale=scale))
    np.testing.assert_allclose(returns, 0.0, atol=1e-12)
    assert abs(flat.sum()) < 1e-12


def test_otc_by_hand():
    """Of those solved, n = 1 call is the fewest: sin(m pi / (m + n))."""
    table = TurnTable(
        [user(0, 1, True), user(1, 3, True), user(2, 0, False, 0.25), user(3, 2, True)]
    )
    returns = table.sum_turns(changed("otc", table))
    expected = [1.0, math.sin(3 * math.pi / 4), 0.25, math.sin(2 * math.pi / 3)]
    np.testing.assert_allclose(returns, expected, atol=1e-12)
    # For PPO: cos(m pi / (2 m + c)); solved without a call: 1.
    returns = table.sum_turns(changed("otc", table, relative=False, alpha=2.0))
    cosines = [math.cos(m * math.pi / (2 * m + 1)) for m in (1, 3, 2)]
    np.testing.assert_allclose(
        returns, [2 * cosines[0], 2 * cosines[1], 0.25, 2 * cosines[2]]
    )
    table = TurnTable([user(0, 0, True), user(1, 2, True)])
    np.testing.assert_allclose(
        table.sum_turns(changed("otc", table)), [1.0, math.cos(2 * math.pi / 5)]
    )


@pytest.mark.parametrize("fewest", range(6))
def test_otc_is_best_at_the_fewest_calls(fewest):
    values = [tool_efficiency(m, fewest) for m in range(fewest, 20)]
    assert (
        values[0] == 1.0 and values == sorted(values, reverse=True) and values[-1] > 0
    )


def test_optima_takes_tokens_relative_to_the_longest():
    table = TurnTable(
        [
            trajectory(0, r, a, [0.0, 1.0], num_tokens=[tokens, 0])
            for r in range(2)
            for a, tokens in enumerate((1 + 5 * r, 3 + r))
        ]
    )
    # Tokens of the episodes: 4 and 10, so costs of 0.2 and 0.5 for both agents.
    got = changed("optima_cost", table, weight=0.5)
    np.testing.assert_allclose(got, [0, 0.8, 0, 0.8, 0, 0.5, 0, 0.5])


# Teams: wired to the functions of objectives, which have tests of their own ----------


def columns(table):
    return table.episode[table.owner], table.agent[table.owner]


def test_teams_share_by_round_or_episode():
    table = random_table()
    episodes, _ = columns(table)
    for of, weight in (("round", 1.0), ("round", 0.25), ("episode", 0.5)):
        got = changed("share", table, of=of, team_weight=weight)
        for i, reward in enumerate(table.rewards):
            mates = episodes == episodes[i]
            if of == "round":
                mates &= table.step == table.step[i]
            mean = table.rewards[mates].mean()
            assert got[i] == pytest.approx((1 - weight) * reward + weight * mean)


def test_marti_and_maporl_read_the_right_columns():
    table = random_table()
    episodes, agents = columns(table)
    for shaping in ("margin", "quality"):
        expected = allocation.shaped_rewards(
            table.rewards, episodes, table.step, shaping=shaping, alpha=0.3, beta=0.2
        )
        got = changed("marti", table, shaping=shaping, alpha=0.3, beta=0.2)
        np.testing.assert_array_equal(got, expected)
    bonuses = {"persuaded": 0.1, "opposed": 0.2, "contrary": 0.3, "leading": 0.4}
    expected = allocation.influence_rewards(
        table.rewards, episodes, table.turn, discount=0.7
    ) + allocation.persuasion_bonuses(
        table.rewards, episodes, table.turn, agents, **bonuses
    )
    got = changed("maporl", table, discount=0.7, **bonuses)
    np.testing.assert_array_equal(got, expected)


def test_marti_by_hand():
    """Second message: earlier mean 1, so 0.5 + 0.5 (0.5 - 1) + 0.5 * final 0.5."""
    one = [trajectory(agent=0, rewards=[1.0], steps=[0])]
    two = [trajectory(agent=1, rewards=[0.5], steps=[1])]
    got = changed("marti", TurnTable(one + two))
    np.testing.assert_allclose(got, [1.0 + 0.25, 0.5 - 0.25 + 0.25])


# All of them -------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRANSFORMS)
def test_order_changes_nothing(name):
    table = table_with_tools()
    order = np.random.default_rng(1).permutation(len(table))
    moved = rearranged(table, order)
    parts = table.split(changed(name, table))
    expected = np.concatenate([parts[i] for i in order])
    np.testing.assert_allclose(changed(name, moved), expected, atol=1e-12)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_nothing_and_lone_rollouts_are_no_trouble(name):
    assert changed(name, TurnTable([])).shape == (0,)
    table = table_with_tools(tasks=2, rollouts=1, agents=1)
    assert np.isfinite(changed(name, table)).all()
    Rewards([], [{"name": name, **NEEDED.get(name, {})}]).try_out()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_masked_rollouts_get_rewards_like_others(name):
    """Rewards are given before anything is masked; the flag has no say in them."""
    table = table_with_tools()
    before = changed(name, table)
    for t in table.trajectories:
        t.is_trained = False
    assert np.array_equal(changed(name, TurnTable(table.trajectories)), before)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("discount", "needs 'discount'"),
        ({"name": "discount", "discount": 2}, "discount=2 must be in"),
        ({"name": "group_normalise", "unit": "token"}, "unit must be 'trajectory'"),
        ({"name": "otc", "smooth": 0}, "smooth=0 must be > 0"),
        ({"name": "optima_cost", "weight": -1}, "weight=-1 must be >= 0"),
        ({"name": "share", "of": "team"}, "'round' or 'episode'"),
        ({"name": "share", "team_weight": 2}, "team_weight is 2"),
        ({"name": "marti", "shaping": "best"}, "shaping"),
        ({"name": "maporl", "discount": -1}, "discount is -1"),
    ],
)
def test_bad_settings_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        Rewards([], [spec]).try_out()


def test_clip_bounds_both_ends():
    table = TurnTable([trajectory(rewards=[-3.0, -0.5, 0.25, 4.0])])
    assert changed("clip", table, low=-1.0, high=2.0).tolist() == [-1, -0.5, 0.25, 2]
