"""Tasks and instances: the goal of an episode, and the drawing of its room."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Sequence
from functools import lru_cache

from rllib_llm.envs.household.rooms import ABLE, APPLIANCES, KINDS, LAMP, Room, house
from rllib_llm.envs.household.world import Receptacle, Thing, World
from rllib_llm.envs.text_env import in_split

# Kinds of rooms in which ALFRED sets each task.
TASKS: dict[str, tuple[str, ...]] = {
    "put": KINDS,
    "light": ("living room", "bedroom"),
    "clean": ("kitchen", "bathroom"),
    "heat": ("kitchen",),
    "cool": ("kitchen",),
    "two": KINDS,
}
_STEPS = {
    "put": ("take", "place"),
    "light": ("take", "light"),
    "clean": ("take", "clean", "place"),
    "heat": ("take", "heat", "place"),
    "cool": ("take", "cool", "place"),
    "two": ("take", "place", "take", "place"),
}
LAMP_STANDS = ("Desk", "Dresser", "Shelf", "SideTable")
_MOST_OF_A_TYPE = 3  # ALFRED's limit
_RESULTS = {"clean": "clean", "heat": "hot", "cool": "cool"}


@dataclasses.dataclass(frozen=True)
class Goal:
    """The goal of an episode.

    Attributes:
        task: One of ``TASKS``.
        target: Type of the object.
        destination: Type of its destination receptacle, or of the lamp.
    """

    task: str
    target: str
    destination: str

    @property
    def steps(self) -> tuple[str, ...]:
        """The sub-goals, in their natural order."""
        return _STEPS[self.task]

    def reached(self, world: World) -> int:
        """Return the number of sub-goals that the most advanced object meets."""
        held = world.held is not None and world.held.type == self.target
        if self.task == "light":
            return held + (held and _is_lit(world))
        targets = [t for t in world.things if t.type == self.target]
        if self.task == "two":
            places = [t.at for t in targets if t.at and t.at.type == self.destination]
            inside = max((sum(p is q for q in places) for p in places), default=0)
            return min(len(self.steps), 2 * inside + held)
        return max(map(self._advance, targets))

    def is_processed(self, thing: Thing) -> bool:
        """Return whether the thing is clean, hot or cool as required by the task."""
        return self.task not in _RESULTS or _RESULTS[self.task] in thing.states

    def _advance(self, thing: Thing) -> int:
        processed = self.is_processed(thing)
        if thing.at is None:
            return 1 + (processed and self.task in _RESULTS)
        is_done = processed and thing.at.type == self.destination
        return len(self.steps) if is_done else 0


@dataclasses.dataclass(frozen=True)
class Instance:
    """The initial state of an episode.

    Attributes:
        room: The room.
        goal: The goal.
        text: Wording of the goal.
        receptacles: Type and place of each receptacle in use.
        things: Type of each thing, and the index of its receptacle.
        opened: Indices of the open receptacles.
    """

    room: Room
    goal: Goal
    text: str
    receptacles: tuple[tuple[str, int], ...]
    things: tuple[tuple[str, int], ...]
    opened: tuple[int, ...]

    def world(self) -> World:
        """Return the room in its initial state."""
        return World(house(), self.receptacles, self.things, self.opened)


@lru_cache(maxsize=64)
def goals(task: str, split: str, unseen: bool) -> tuple[tuple[Room, list[Goal]], ...]:
    """Return the rooms that allow a task, and its possible goals in each.

    The hash of the goal decides its split, independently of the room: with few
    receptacles in use, different rooms look alike.

    Args:
        task: One of ``TASKS``.
        split: ``"train"`` or ``"test"``.
        unseen: Whether to return the rooms reserved for tests, or all others.
    """
    choices = []
    for kind in TASKS[task]:
        for room in house().rooms[kind]:
            here = [g for g in _goals_in(room, task) if in_split(str(g), split)]
            if here and room.unseen == unseen:
                choices.append((room, here))
    return tuple(choices)


def draw(
    rng: random.Random,
    choices: Sequence[tuple[Room, list[Goal]]],
    *,
    receptacles: int,
    clutter: int,
    closed: float,
) -> Instance:
    """Draw an instance.

    Args:
        rng: Generator of everything.
        choices: Rooms and goals, from :func:`goals`.
        receptacles: Maximum number of receptacles in use, at least 3.
        clutter: Maximum number of unrelated things.
        closed: Share of receptacles with doors that are closed, in [0, 1].
    """
    room, here = rng.choice(choices)
    goal = rng.choice(here)
    kept = _keep(rng, room, _needed(rng, room, goal), receptacles)
    things = _useful(rng, goal, kept)
    others = [t for t in room.objects if t not in (goal.target, LAMP)]
    for _ in range(clutter if others else 0):
        type_ = rng.choice(others)
        if sum(t == type_ for t, _ in things) < _MOST_OF_A_TYPE:
            things += _place(rng, type_, kept)
    # Shuffled, because numbers follow this order: it must not reveal the target.
    rng.shuffle(things)
    openable = house().openable
    opened = [
        i for i, (t, _) in enumerate(kept) if t in openable and rng.random() >= closed
    ]
    wording = rng.choice(house().wordings[goal.task])
    names = {"obj": goal.target, "recep": goal.destination, "toggle": goal.destination}
    text = wording.format(**{key: name.lower() for key, name in names.items()})
    return Instance(room, goal, text, tuple(kept), tuple(things), tuple(opened))


def _goals_in(room: Room, task: str) -> list[Goal]:
    fits, there = house().fits, {type_ for type_, _ in room.receptacles}
    targets = [t for t in room.objects if t != LAMP]
    if task == "light":
        if LAMP not in room.objects or there.isdisjoint(LAMP_STANDS):
            return []
        return [
            Goal(task, t, LAMP) for t in targets if any(t in fits[r] for r in there)
        ]
    appliance = APPLIANCES.get(task)
    if appliance is not None:
        if appliance not in there:
            return []
        targets = [t for t in targets if t in house().able[ABLE[task]]]
    return [
        Goal(task, target, to)
        for target in targets
        for to in sorted(there - {appliance})
        if target in fits[to] and any(target in fits[r] for r in there - {to})
    ]


def _needed(rng: random.Random, room: Room, goal: Goal) -> set[str]:
    """Return the types of receptacles that the task needs."""
    there = sorted({type_ for type_, _ in room.receptacles})
    fits = house().fits
    sources = [r for r in there if goal.target in fits[r] and r != goal.destination]
    needed = {rng.choice(sources)}
    if goal.destination == LAMP:
        return needed | {rng.choice([r for r in there if r in LAMP_STANDS])}
    needed.add(goal.destination)
    return needed | ({APPLIANCES[goal.task]} if goal.task in APPLIANCES else set())


def _keep(
    rng: random.Random, room: Room, needed: Collection[str], most: int
) -> list[tuple[str, int]]:
    """Return one receptacle of each needed type, and random others."""
    order = list(range(len(room.receptacles)))
    rng.shuffle(order)
    first: dict[str, int] = {}
    for i in order:
        first.setdefault(room.receptacles[i][0], i)
    chosen = [first[type_] for type_ in sorted(needed)]
    others = [i for i in order if i not in chosen]
    return [room.receptacles[i] for i in sorted((chosen + others)[:most])]


def _useful(
    rng: random.Random, goal: Goal, kept: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Place the objects of the task outside of their destination."""
    things = []
    if goal.destination == LAMP:
        stands = [i for i, (t, _) in enumerate(kept) if t in LAMP_STANDS]
        things.append((LAMP, rng.choice(stands)))
    fewest = 2 if goal.task == "two" else 1
    for _ in range(rng.randint(fewest, _MOST_OF_A_TYPE)):
        things += _place(rng, goal.target, kept, but=goal.destination)
    return things


def _place(
    rng: random.Random, type_: str, kept: list[tuple[str, int]], but: str = ""
) -> list[tuple[str, int]]:
    """Put a thing into a random receptacle that can hold it, if there is one."""
    fits = house().fits
    free = [i for i, (t, _) in enumerate(kept) if type_ in fits[t] and t != but]
    return [(type_, rng.choice(free))] if free else []


def _is_lit(world: World) -> bool:
    return any(
        t.type == LAMP and "used" in t.states and _in_reach(world, t.at)
        for t in world.things
    )


def _in_reach(world: World, receptacle: Receptacle | None) -> bool:
    return receptacle is not None and receptacle.place == world.place
