"""A scripted player that uses only information from its observations.

It searches receptacles one after the other, in the order of the first message, except
those whose type cannot hold the target. It remembers what it has seen, and puts down
any wrong object at once.
"""

from __future__ import annotations

from rllib_llm.envs.household.instances import LAMP_STANDS, Goal
from rllib_llm.envs.household.rooms import APPLIANCES, LAMP, house
from rllib_llm.envs.household.world import Receptacle, Thing, World


def advise(world: World, goal: Goal) -> str:
    """Return the next command towards the goal."""
    held = world.held
    if held is None:
        return _fetch(world, goal)
    if held.type != goal.target:
        return _put_down(world, held)
    if goal.task == "light":
        return _use_lamp(world)
    if not goal.is_processed(held):
        appliance = _of_type(world, APPLIANCES[goal.task])[0]
        if appliance.place != world.place:
            return f"go to {appliance.name}"
        return f"{goal.task} {held.name} with {appliance.name}"
    to = _destination(world, goal)
    return _inside(world, to, f"move {held.name} to {to.name}")


def _fetch(world: World, goal: Goal) -> str:
    done = _destination(world, goal) if goal.task == "two" else None
    for thing in _seen_things(world, goal.target):
        if thing.at is not done:
            at = thing.receptacle
            return _inside(world, at, f"take {thing.name} from {at.name}")
    fits = house().fits
    return _search(world, [t for t in fits if goal.target in fits[t]])


def _put_down(world: World, held: Thing) -> str:
    free = [r for r in world.receptacles if held.type in house().fits[r.type]]
    to = min(free, key=lambda r: (r.place != world.place, not r.accessible))
    return _inside(world, to, f"move {held.name} to {to.name}")


def _use_lamp(world: World) -> str:
    for lamp in _seen_things(world, LAMP):
        if lamp.receptacle.place != world.place:
            return f"go to {lamp.receptacle.name}"
        return f"use {lamp.name}"
    return _search(world, LAMP_STANDS)


def _destination(world: World, goal: Goal) -> Receptacle:
    """Return the receptacle of the right type that already holds most targets."""
    targets = [t for t in world.things if t.type == goal.target]
    inside = _of_type(world, goal.destination)
    return max(inside, key=lambda r: sum(t.at is r for t in targets))


def _search(world: World, types: list[str] | tuple[str, ...]) -> str:
    following = next(r for r in world.receptacles if r.type in types and not r.seen)
    return _inside(world, following, f"examine {following.name}")


def _inside(world: World, r: Receptacle, command: str) -> str:
    """Return the commands to go there and to open it, then ``command``."""
    if r.place != world.place:
        return f"go to {r.name}"
    return command if r.accessible else f"open {r.name}"


def _seen_things(world: World, type_: str) -> list[Thing]:
    return [t for t in world.things if t.type == type_ and t.at and t.at.seen]


def _of_type(world: World, type_: str) -> list[Receptacle]:
    return [r for r in world.receptacles if r.type == type_]
