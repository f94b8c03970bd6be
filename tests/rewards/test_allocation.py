"""Reward allocation against the formulas written as loops, and exact Shapley values."""

import itertools

import numpy as np
import pytest

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.rewards.allocation import (
    ALLOCATIONS,
    SHAPINGS,
    allocate_rewards,
    gated_rewards,
    influence_rewards,
    persuasion_bonuses,
    shaped_rewards,
    shapley_values,
    team_and_local_rewards,
)

ATOL = 1e-9


def make_debate(seed, *, gaps=False):
    """Three episodes of up to four rounds; some agents miss some rounds."""
    rng = np.random.default_rng(seed)
    rounds = [0, 1, 3, 4] if gaps else [0, 1, 2, 3]
    rows = [
        (episode, turn, agent)
        for episode in range(3)
        for turn in rounds[: 2 + episode]
        for agent in range(3)
        if rng.random() < 0.8
    ]
    rows = np.array([rows[i] for i in rng.permutation(len(rows))])
    return rows[:, 0], rows[:, 1], rows[:, 2], rng.random(len(rows))


@pytest.mark.parametrize("mode", ALLOCATIONS)
def test_allocation_equals_the_loop(mode):
    episodes, turns, _, rewards = make_debate(0)
    sets = combined_keys(episodes, turns)
    weight = {"individual": 0.0, "team": 1.0, "shared": 0.3}[mode]
    given = {"team_weight": 0.3} if mode == "shared" else {}
    got = allocate_rewards(rewards, sets, mode, **given)
    for k in range(len(rewards)):
        team = np.mean([r for r, s in zip(rewards, sets) if s == sets[k]])
        assert got[k] == pytest.approx((1 - weight) * rewards[k] + weight * team)
    for s in set(sets.tolist()):
        assert got[sets == s].sum() == pytest.approx(rewards[sets == s].sum())


@pytest.mark.parametrize("mode", ALLOCATIONS)
def test_one_agent_keeps_its_reward(mode):
    given = {"team_weight": 0.3} if mode == "shared" else {}
    got = allocate_rewards([1.0, -2.0], ["a", "b"], mode, **given)
    np.testing.assert_allclose(got, [1.0, -2.0])


def test_team_and_local():
    got = team_and_local_rewards([1.0, 0.0], [0.25, -0.5], alpha=0.7)
    np.testing.assert_allclose(got, [0.95, -0.5])


def test_gate():
    got = gated_rewards([True, True, False, False], [True, False, True, False])
    assert got.tolist() == [1.0, 0.1, 0.0, 0.0]


def slow_influence(k, scores, episodes, turns, g):
    """MAPoRL's discounted sum, from its formula."""
    later = sorted({t for e, t in zip(episodes, turns) if e == episodes[k]})
    numerator = denominator = 0.0
    for t in later:
        if t < turns[k]:
            continue
        weight = g ** (t - turns[k])
        answers = [
            v
            for v, e, other in zip(scores, episodes, turns)
            if (e, other) == (episodes[k], t)
        ]
        mean = scores[k] if t == turns[k] else sum(answers) / len(answers)
        numerator += weight * mean
        denominator += weight
    return numerator / denominator


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("discount", [0.0, 0.7, 1.0])
def test_influence_equals_the_formula(seed, gaps, discount):
    episodes, turns, _, scores = make_debate(seed, gaps=gaps)
    got = influence_rewards(scores, episodes, turns, discount=discount)
    expected = [
        slow_influence(k, scores, episodes, turns, discount) for k in range(len(scores))
    ]
    np.testing.assert_allclose(got, expected, atol=ATOL)
    assert got.min() >= 0 and got.max() <= 1
    one = episodes == 1
    alone = influence_rewards(scores[one], episodes[one], turns[one], discount=discount)
    assert (alone == got[one]).all()


def test_influence_without_a_future_is_the_score():
    scores = np.array([0.2, 0.9])
    got = influence_rewards(scores, [0, 0], [4, 4], discount=0.9)
    np.testing.assert_allclose(got, scores)
    assert influence_rewards([], [], [], discount=1.0).shape == (0,)


def side(correctness):
    """Return +1 for right, -1 for wrong, 0 for neither."""
    return int(correctness > 0.5) - int(correctness < 0.5)


def slow_bonus(k, correct, episodes, turns, agents, a0, a1, a2, a3):
    """MAPoRL's bonuses, case by case, with the sign of the improvement."""

    def answers(turn):
        """The agent's own side in a round, and the others'; None if silent."""
        answers = {
            a: c
            for c, e, t, a in zip(correct, episodes, turns, agents)
            if (e, t) == (episodes[k], turn)
        }
        own = answers.pop(agents[k], None)
        mean = sum(answers.values()) / len(answers) if answers else None
        return [None if x is None else side(x) for x in (own, mean)]

    (before, others_before), (now, others), (_, others_next) = (
        answers(turns[k] + shift) for shift in (-1, 0, 1)
    )
    bonus = 0.0
    if before is not None and before * now == -1:
        if others_before == now:
            bonus += a0 * now
        elif others_before is None or others_before == before:
            bonus += a1 * now
    if None not in (others, others_next) and others * others_next == -1:
        if now == others_next:
            bonus += a3 * others_next
        elif now == others:
            bonus += a2 * others_next
    return bonus


def test_bonuses_equal_the_rules():
    alphas = (1.0, 10.0, 100.0, 1000.0)
    names = ("persuaded", "opposed", "contrary", "leading")
    settings = dict(zip(names, alphas))
    seen = set()
    for seed in range(40):
        episodes, turns, agents, correct = make_debate(seed, gaps=seed % 2 == 1)
        rng = np.random.default_rng(seed)
        correct = rng.choice([0.0, 0.5, 1.0], p=[0.45, 0.1, 0.45], size=len(correct))
        rows = (correct, episodes, turns, agents)
        got = persuasion_bonuses(*rows, **settings)
        expected = [slow_bonus(k, *rows, *alphas) for k in range(len(correct))]
        np.testing.assert_allclose(got, expected, atol=ATOL)
        later = persuasion_bonuses(correct, episodes, turns + 5, agents, **settings)
        assert (later == got).all()
        seen |= set(expected)
    assert seen >= {sign * alpha for sign in (1, -1) for alpha in alphas}


def test_persuading_others_rightly_is_rewarded():
    """Agent 0 is right, agent 1 follows it: the released code would punish agent 0."""
    arguments = ([1.0, 0.0, 1.0, 1.0], [0] * 4, [0, 0, 1, 1], [0, 1, 0, 1])
    got = persuasion_bonuses(*arguments, leading=1.0)
    assert got.tolist() == [1.0, 0.0, 0.0, 0.0]
    got = persuasion_bonuses(*arguments, persuaded=1.0)
    assert got.tolist() == [0.0, 0.0, 0.0, 1.0]


def test_a_single_agent_only_changes_its_own_mind():
    got = persuasion_bonuses(
        [0.0, 1.0, 0.0],
        [0] * 3,
        [0, 1, 2],
        [0] * 3,
        persuaded=5.0,
        opposed=1.0,
        contrary=5.0,
        leading=5.0,
    )
    assert got.tolist() == [0.0, 1.0, -1.0]
    assert persuasion_bonuses([], [], [], []).shape == (0,)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shaping", SHAPINGS)
def test_shaping_equals_the_formula(seed, shaping):
    episodes, order, _, rewards = make_debate(seed)
    got = shaped_rewards(rewards, episodes, order, shaping=shaping, alpha=0.4, beta=0.3)
    for k, reward in enumerate(rewards):
        mine = [(o, r) for o, r, e in zip(order, rewards, episodes) if e == episodes[k]]
        earlier = [r for o, r in mine if o < order[k]]
        last = max(o for o, _ in mine)
        expected = reward + 0.3 * np.mean([r for o, r in mine if o == last])
        if earlier:
            q = np.mean(earlier)
            term = {
                "margin": reward - q,
                "quality": q * reward - (1 - q) * (1 - reward),
            }[shaping]
            expected += 0.4 * term
        assert got[k] == pytest.approx(expected, abs=ATOL)


def test_shaping_of_a_chain_by_hand():
    """MARTI's chain of three: wrong, right, right."""
    chain = ([0.0, 1.0, 1.0], [0] * 3, [0, 1, 2])
    np.testing.assert_allclose(
        shaped_rewards(*chain, shaping="margin"), [0.0, 1.5, 1.25]
    )
    np.testing.assert_allclose(
        shaped_rewards(*chain, shaping="quality"), [0.0, 1.0, 1.25]
    )
    np.testing.assert_allclose(
        shaped_rewards(*chain, shaping="margin", beta=0.5), [0.5, 2.0, 1.75]
    )
    # Those who act at once are not earlier than each other.
    got = shaped_rewards([0.0, 1.0, 1.0], [0] * 3, [0, 0, 1], shaping="margin")
    np.testing.assert_allclose(got, [0.0, 1.0, 1.25])
    assert shaped_rewards([], [], [], shaping="margin").shape == (0,)


def slow_shapley(values, count):
    """Average each agent's gain over all orders in which the team can assemble."""
    phi = np.zeros(count)
    orders = list(itertools.permutations(range(count)))
    for order in orders:
        coalition = 0
        for agent in order:
            joined = coalition | 1 << agent
            phi[agent] += values[joined] - values[coalition]
            coalition = joined
    return phi / len(orders)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shapley_equals_the_mean_over_orders(count):
    values = np.random.default_rng(count).normal(size=(2, 2**count))
    got = shapley_values(values)
    for row in range(2):
        expected = slow_shapley(values[row], count)
        np.testing.assert_allclose(got[row], expected, atol=ATOL)
    np.testing.assert_allclose(got.sum(-1), values[:, -1] - values[:, 0], atol=ATOL)


def test_shapley_of_dummies_and_twins():
    """v = 1 if agents 0 and 1 are both in; agent 2 does nothing."""
    values = [float(c & 3 == 3) for c in range(8)]
    np.testing.assert_allclose(shapley_values(values), [0.5, 0.5, 0.0], atol=ATOL)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: allocate_rewards([1.0], [0], "tema"), "Did you mean 'team'"),
        (lambda: allocate_rewards([1.0], [0], "shared"), "team_weight is None"),
        (
            lambda: allocate_rewards([1.0], [0], "team", team_weight=0.5),
            "team_weight is 0.5 with mode 'team'",
        ),
        (
            lambda: allocate_rewards([1.0], [0], "shared", team_weight=2),
            "team_weight is 2",
        ),
        (lambda: allocate_rewards([1.0], [0, 1], "team"), "Shapes differ"),
        (lambda: allocate_rewards([np.nan], [0], "team"), "nan"),
        (lambda: team_and_local_rewards([1.0], [1.0], alpha=-1), "alpha is -1"),
        (lambda: gated_rewards([1], [True]), "well_formed has dtype int"),
        (lambda: gated_rewards([True], [True], partial=3), "partial is 3"),
        (lambda: influence_rewards([1.0], [0], [0.5], discount=1), "turns has dtype"),
        (lambda: influence_rewards([1.0], [0], [0], discount=2), "discount is 2"),
        (
            lambda: persuasion_bonuses([1, 1], [0, 0], [0, 0], [0, 0]),
            "two messages in one round",
        ),
        (lambda: shaped_rewards([1.0], [0], [0], shaping="mean"), "shaping is 'mean'"),
        (
            lambda: shaped_rewards([2.0], [0], [0], shaping="quality"),
            r"rewards lie in \[2.0, 2.0\]",
        ),
        (
            lambda: shaped_rewards([1.0], [0], [0], shaping="margin", beta=-1),
            "beta is -1",
        ),
        (lambda: shapley_values(np.zeros(3)), "has 3 coalitions"),
        (lambda: shapley_values(np.zeros(1)), "has 1 coalitions"),
        (lambda: shapley_values([0.0, np.nan]), r"coalition_values\[1\] is nan"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
