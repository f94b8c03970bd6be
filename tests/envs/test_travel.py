"""Offers, wishes and the verifier of travel-v0."""

import dataclasses
import itertools

import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.envs.travel_offers import Offer, Wish, offers_of

TRAIN = Offer("T1", "A-B", price=40, hour=9)
HOTEL = Offer("H1", "B", price=50)
PARK = Offer("S1", "B", hour=12, kind="park")
WISH = Wish("A-B", "park", by=9, most=50, open_sight=True, budget=90)


def test_a_plan_at_every_bound_is_met():
    assert WISH.is_met(TRAIN, HOTEL, PARK)
    assert WISH.text() == (
        "Go from A to B, arrive by 9, sleep for at most 50, see a park before it "
        "closes, spend at most 90."
    )
    assert Wish("A-B", "park").text() == "Go from A to B, see a park."


@pytest.mark.parametrize(
    "change",
    [
        {"route": "B-A"},
        {"kind": "tower"},
        {"by": 8},
        {"most": 49},
        {"budget": 89},
    ],
)
def test_each_constraint_refuses(change):
    assert not dataclasses.replace(WISH, **change).is_met(TRAIN, HOTEL, PARK)


def test_a_sight_that_closes_at_the_hour_of_arrival_is_closed():
    closed = dataclasses.replace(PARK, hour=9)
    assert not WISH.is_met(TRAIN, HOTEL, closed)
    assert dataclasses.replace(WISH, open_sight=False).is_met(TRAIN, HOTEL, closed)


def test_offers_are_fixed_by_the_seed_and_found_by_place():
    offers = offers_of(3)
    assert offers is offers_of(3) and len(offers.by_code) == 90 + 18 + 18
    for letter, places in (("T", offers.routes), ("H", offers.cities)):
        for place in places:
            found = offers.at(letter, f" {place.lower()}. ")
            assert len(found) == 3 and {o.place for o in found} == {place}
            assert {o.code[0] for o in found} == {letter}
    assert offers.at("S", "Nowhere") == []


def test_plans_are_those_of_a_slow_search():
    env = make_env("travel-v0")
    for seed in range(5):
        env.reset(seed=seed)
        every = itertools.product(env.offers.by_code.values(), repeat=2)
        pairs = [(t, h) for t, h in every if t.code[0] == "T" and h.code[0] == "H"]
        sights = [o for o in env.offers.by_code.values() if o.code[0] == "S"]
        slow = {
            (t.code, h.code, s.code)
            for t, h in pairs
            for s in sights
            if env.wish.is_met(t, h, s)
        }
        plans = env.offers.plans(env.wish)
        assert plans and {tuple(o.code for o in p) for p in plans} == slow


def verified(env, answer):
    *_, info = step = env.step(f"<answer>{answer}</answer>")
    assert step[2] and step[1] == float(info["success"])
    assert info["success"] == (info["feasible"] == info["consistent"] == 1.0)
    return info["feasible"], info["consistent"]


def test_a_plan_needs_sources():
    """A right plan that no tool has shown passes the first check alone."""
    for queries in range(4):
        env = make_env("travel-v0")
        env.reset(seed=0)
        plan = env.offers.plans(env.wish)[0]
        tools = ("transport", "hotels", "sights")
        for tool, offer in list(zip(tools, plan, strict=True))[:queries]:
            text, _, _, _, info = env.step(f"<{tool}>{offer.place}</{tool}>")
            assert offer.text in text.splitlines()
            assert (info["tool"], info["tool_error"]) == (tool, False)
        codes = [o.code.lower() for o in reversed(plan)]
        assert verified(env, " and ".join(codes)) == (1.0, pytest.approx(queries / 3))


@pytest.mark.parametrize("answer", ["", "T1 H1", "T1 T2 H1 S1", "T999 H1 S1", "yes"])
def test_an_incomplete_plan_is_not_feasible(answer):
    env = make_env("travel-v0", {"constraints": 0})
    env.reset(seed=0)
    if answer:
        assert verified(env, answer)[0] == 0.0
    else:
        assert env.step("<answer></answer>")[4]["invalid_action"]


def test_unknown_places_have_no_offers():
    env = make_env("travel-v0")
    env.reset(seed=0)
    text, *_, info = env.step("<hotels>Nowhere</hotels>")
    assert text == "Nothing found." and info["tool_error"]


@pytest.mark.parametrize("constraints", range(5))
def test_constraints_come_in_order(constraints):
    env = make_env("travel-v0", {"constraints": constraints})
    for seed in range(30):
        played = play(env, seed, expert_policy)
        assert played.success and len(played.actions) == 4
        wish = env.wish
        given = (wish.by, wish.most, wish.open_sight or None, wish.budget)
        assert [g is not None for g in given] == [i < constraints for i in range(4)]
