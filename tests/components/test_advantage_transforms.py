"""Transforms of summed advantages."""

from __future__ import annotations

import numpy as np
import pytest
from component_helpers import NEEDED, random_table, rearranged

from rllib_llm.components.registry import COMPONENTS, bind
from rllib_llm.data.turn_table import MissingInfo, TurnTable
from rllib_llm.data.types import MIXTURE_ENVIRONMENT

NAMES = tuple(COMPONENTS["advantage_transform"])


def transformed(table, advantages, name, **settings):
    return bind(
        "advantage_transform", {"name": name, **NEEDED.get(name, {}), **settings}
    ).call(table, advantages)


@pytest.fixture
def table():
    return random_table(4)


@pytest.fixture
def advantages(table):
    return np.random.default_rng(1).normal(size=len(table.owner))


@pytest.mark.parametrize("name", NAMES)
def test_order_does_not_matter_and_nothing_is_overwritten(name, table, advantages):
    kept = advantages.copy()
    parts = table.split(transformed(table, advantages, name))
    np.testing.assert_array_equal(advantages, kept)
    order = np.random.default_rng(2).permutation(len(table))
    shuffled = rearranged(table, order)
    given = np.concatenate([table.split(advantages)[i] for i in order])
    found = shuffled.split(transformed(shuffled, given, name))
    for place, original in enumerate(order):
        np.testing.assert_allclose(found[place], parts[original], atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_empty_tables_stay_empty(name, table):
    assert not transformed(table, np.zeros(len(table.owner)), name).any()
    assert transformed(TurnTable([]), np.zeros(0), name).shape == (0,)


@pytest.mark.parametrize("by", ["batch", "group", "agent", "policy"])
@pytest.mark.parametrize("unit", ["turn", "token"])
def test_whiten_standardises_each_part(table, advantages, by, unit):
    found = transformed(table, advantages, "whiten", by=by, unit=unit)
    of = {
        "batch": np.zeros(len(table), int),
        "group": table.task,
        "agent": table.agent,
        "policy": table.agent,  # one policy each
    }[by][table.owner]
    for part in np.unique(of):
        values, out = [], []
        for k in np.flatnonzero(of == part):
            for _ in range(table.turn_tokens[k] if unit == "token" else 1):
                values.append(advantages[k])
                out.append(found[k])
        expected = (values - np.mean(values)) / (np.std(values, ddof=1) + 1e-8)
        np.testing.assert_allclose(out, expected, atol=1e-9)


def test_clip_bounds(table, advantages):
    found = transformed(table, advantages, "clip", low=-0.3, high=0.6)
    assert found.min() == -0.3 and found.max() == 0.6
    inside = (advantages > -0.3) & (advantages < 0.6)
    np.testing.assert_array_equal(found[inside], advantages[inside])


def test_positive_only_keeps_what_went_well(table, advantages):
    found = transformed(table, advantages, "positive_only")
    assert (found >= 0).all() and found.any()
    np.testing.assert_array_equal(found[advantages > 0], advantages[advantages > 0])


def test_discount_counts_back_from_the_last_turn(table, advantages):
    found = table.split(transformed(table, advantages, "discount_turns", discount=0.5))
    for given, part in zip(table.split(advantages), found, strict=True):
        expected = [a * 0.5 ** (len(given) - 1 - t) for t, a in enumerate(given)]
        np.testing.assert_allclose(part, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("formula", "f"),
    [
        ("hard", lambda p: 1 - p),
        ("easy", lambda p: p),
        ("uncertain", lambda p: 4 * p * (1 - p)),
    ],
)
def test_weight_reads_the_success_rate_of_the_group(table, advantages, formula, f):
    settings = {"formula": formula, "power": 2.0, "strength": 0.6}
    found = transformed(table, advantages, "weight", **settings)
    solved = table.success
    for k, i in enumerate(table.owner):
        p = solved[table.task == table.task[i]].mean()
        expected = advantages[k] * (0.4 + 0.6 * f(p) ** 2)
        assert abs(found[k] - expected) < 1e-9
    same = transformed(table, advantages, "weight", formula=formula, strength=0.0)
    np.testing.assert_array_equal(same, advantages)


def kinds_of(table, by):
    """Give tasks a kind each, in infos and as the environment of a mixture."""
    for one in table.trajectories:
        kind = ("count", "find")[one.task.group_id % 2]
        one.infos = [{"kind": kind} for _ in one.rewards]
        one.task.options[MIXTURE_ENVIRONMENT] = kind
    return {"by": by, **({"key": "kind"} if by == "info" else {})}


@pytest.mark.parametrize("by", ["environment", "info"])
def test_weight_reads_the_mean_rate_of_the_groups_of_a_kind(by):
    table = rearranged(random_table(6, tasks=5), [*range(3, 40), 0, 1])  # uneven groups
    advantages = np.random.default_rng(1).normal(size=len(table.owner))
    settings = {"power": 2.0, "strength": 0.6, **kinds_of(table, by)}
    found = transformed(table, advantages, "weight", **settings)
    for k, i in enumerate(table.owner):
        kind = table.trajectories[i].infos[0]["kind"]
        alike = [t for t in table.trajectories if t.infos[0]["kind"] == kind]
        rates = []
        for group in {t.task.group_id for t in alike}:
            of = [float(t.success) for t in alike if t.task.group_id == group]
            rates.append(sum(of) / len(of))
        p = sum(rates) / len(rates)
        assert abs(found[k] - advantages[k] * (0.4 + 0.6 * (1 - p) ** 2)) < 1e-12


@pytest.mark.parametrize("by", ["environment", "info"])
def test_kinds_neither_depend_on_the_order_nor_on_each_other(by):
    table = random_table(6, tasks=6)
    advantages = np.random.default_rng(1).normal(size=len(table.owner))
    settings = kinds_of(table, by)
    parts = table.split(transformed(table, advantages, "weight", **settings))
    order = np.random.default_rng(2).permutation(len(table))
    alike = [i for i in order if table.task[i] % 2 == 0]
    for chosen in (order, alike):
        some = rearranged(table, chosen)
        given = np.concatenate([table.split(advantages)[i] for i in chosen])
        found = some.split(transformed(some, given, "weight", **settings))
        for place, original in enumerate(chosen):
            np.testing.assert_allclose(found[place], parts[original], atol=1e-12)


def test_a_kind_of_one_group_is_weighed_as_the_group(table, advantages):
    for one in table.trajectories:
        one.infos = [{"kind": one.task.group_id}] * len(one)
    found = transformed(table, advantages, "weight", by="info", key="kind")
    np.testing.assert_array_equal(found, transformed(table, advantages, "weight"))


def test_without_a_mixture_all_tasks_are_of_one_kind(table, advantages):
    found = transformed(table, advantages, "weight", by="environment")
    rates = [table.success[table.task == task].mean() for task in range(3)]
    np.testing.assert_allclose(found, advantages * (1 - np.mean(rates)), atol=1e-12)


def test_rollouts_of_a_task_are_of_one_kind(table, advantages):
    for number, one in enumerate(table.trajectories):
        one.infos = [{"kind": number}] * len(one)
    with pytest.raises(ValueError, match=r"infos 'kind' of '0' and '1'.*same in all"):
        transformed(table, advantages, "weight", by="info", key="kind")
    with pytest.raises(MissingInfo, match="no 'sort'.*has: kind"):
        transformed(table, advantages, "weight", by="info", key="sort")


def test_a_rollout_that_was_cut_has_not_succeeded(table, advantages):
    before = transformed(table, advantages, "weight")
    for one in table.trajectories:
        one.success = one.success or None
    np.testing.assert_array_equal(transformed(table, advantages, "weight"), before)
