"""A room with things in it, and ALFWorld's commands, their conditions and replies.

The rules are those of ALFWorld's planning domain (Shridhar et al. 2021,
arXiv:2010.03768); the replies follow its grammar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rllib_llm.envs.household.rooms import APPLIANCES, LAMP, House

NOTHING = "Nothing happens."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
_KNIVES = ("Knife", "ButterKnife")
_MIDDLE_OF_ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see "
)
_MIDDLE = -1  # the starting place, where no receptacle is in reach


@dataclasses.dataclass(eq=False, slots=True)
class Receptacle:
    """Furniture that holds things.

    Attributes:
        type: E.g. "SinkBasin".
        name: E.g. "sinkbasin 1".
        place: Place from which it is in reach; several may share one.
        openable: Whether it can be opened.
        is_open: Whether it is open.
        seen: Whether its contents have been shown.
        things: Its contents, in the order of observations.
    """

    type: str
    name: str
    place: int
    openable: bool
    is_open: bool = False
    seen: bool = False
    things: list[Thing] = dataclasses.field(default_factory=list)

    @property
    def accessible(self) -> bool:
        """True if things can be put in, taken out and seen."""
        return self.is_open or not self.openable


@dataclasses.dataclass(eq=False, slots=True)
class Thing:
    """An object.

    Attributes:
        type: E.g. "Apple".
        name: E.g. "apple 2".
        rank: Position in the order of observations.
        at: Its receptacle; None while it is held.
        states: Subset of "clean", "hot", "cool", "sliced", "used".
        left: Receptacles from which it was taken without being put back.
    """

    type: str
    name: str
    rank: int
    at: Receptacle | None
    states: set[str] = dataclasses.field(default_factory=set)
    left: list[Receptacle] = dataclasses.field(default_factory=list)

    @property
    def receptacle(self) -> Receptacle:
        """The receptacle of an object that is not held in the hand."""
        assert self.at is not None, f"The {self.name} is held."
        return self.at


class World:
    """The state of a room.

    Args:
        house: Rules common to all rooms.
        receptacles: Type and place of each receptacle.
        things: Type of each thing, and the index of its receptacle.
        opened: Indices of the open receptacles.
    """

    def __init__(
        self,
        house: House,
        receptacles: Sequence[tuple[str, int]],
        things: Sequence[tuple[str, int]],
        opened: Sequence[int] = (),
    ):
        self._fits, self._able = house.fits, house.able
        self._holders = house.holders
        made = [
            Receptacle(type_, name, place, type_ in house.openable)
            for (type_, place), name in zip(
                receptacles, numbered([t for t, _ in receptacles]), strict=True
            )
        ]
        for index in opened:
            made[index].is_open = made[index].openable
        self.receptacles = sorted(made, key=_observation_order)
        names = numbered([t for t, _ in things])
        self.things = [
            Thing(type_, name, 0, made[at])
            for (type_, at), name in zip(things, names, strict=True)
        ]
        self.things.sort(key=_observation_order)
        for rank, thing in enumerate(self.things):
            thing.rank = rank
            thing.receptacle.things.append(thing)
        self.place = _MIDDLE
        self.held: Thing | None = None
        self._commands: dict[str, tuple[Any, ...]] | None = None

    def commands(self) -> dict[str, tuple[Any, ...]]:
        """Return all possible commands, in alphabetical order."""
        if self._commands is None:
            self._commands = dict(sorted(self._possible()))
        return self._commands

    def do(self, command: str) -> str:
        """Execute a command and return the observation."""
        effect = self.commands().get(command)
        if effect is None:
            return NOTHING
        self._commands = None
        method, *arguments = effect
        return getattr(self, method)(*arguments)

    def in_reach(self) -> list[Receptacle]:
        """Return the receptacles in reach."""
        return [r for r in self.receptacles if r.place == self.place]

    def introduction(self) -> str:
        """Return the first description of the room."""
        return (
            _MIDDLE_OF_ROOM + f"{_listed([f'a {r.name}' for r in self.receptacles])}."
        )

    # The commands ---------------------------------------------------------------

    def _look(self) -> str:
        near = self.in_reach()
        if not near:  # ALFWorld lists the room once, in the first message
            return f"{_MIDDLE_OF_ROOM}nothing."
        # As in ALFWorld: things put down in reach of where they were taken from.
        beside = [
            f"a {thing.name}"
            for thing in self.things
            if thing.at is not None and thing.at.place == self.place
            for left in near
            if left in thing.left
        ]
        facing = _listed([r.name for r in near])
        return f"You are facing the {facing}. Next to it, you see {_listed(beside)}."

    def _possible(self) -> list[tuple[str, tuple[Any, ...]]]:
        near, held = self.in_reach(), self.held
        commands: list[tuple[str, tuple[Any, ...]]] = [
            ("help", ("_help",)),
            ("inventory", ("_inventory",)),
            ("look", ("_look",)),
        ]
        commands += [
            (f"go to {r.name}", ("_go", r))
            for r in self.receptacles
            if r.place != self.place
        ]
        for r in near:
            commands.append((f"examine {r.name}", ("_examine", r)))
            if r.openable:
                verb = "close" if r.is_open else "open"
                commands.append((f"{verb} {r.name}", (f"_{verb}", r)))
            for thing in r.things:
                if thing.type == LAMP:
                    commands.append((f"use {thing.name}", ("_use", thing)))
                elif r.accessible and held is None:
                    take = f"take {thing.name} from {r.name}"
                    commands.append((take, ("_take", thing, r)))
            if held is not None:
                commands += self._with_held(held, r)
        if held is not None:
            commands.append((f"examine {held.name}", ("_inspect", held)))
        return commands

    def _with_held(self, held: Thing, r: Receptacle) -> list[tuple[str, tuple]]:
        commands: list[tuple[str, tuple]] = []
        if r.accessible and held.type in self._fits[r.type]:
            commands.append((f"move {held.name} to {r.name}", ("_move", held, r)))
        for verb, appliance in APPLIANCES.items():
            if r.type == appliance and held.type in self._able[f"{verb}able"]:
                commands.append(
                    (f"{verb} {held.name} with {r.name}", ("_treat", verb, r))
                )
        if held.type in _KNIVES:
            commands += [
                (f"slice {thing.name} with {held.name}", ("_slice", thing))
                for thing in r.things
                if thing.type in self._able["sliceable"]
            ]
        return commands

    def _help(self) -> str:
        return HELP

    def _inventory(self) -> str:
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.held.name}."

    def _go(self, r: Receptacle) -> str:
        self.place = r.place
        return f"You arrive at {r.name}. {self._examine(r)}"

    def _examine(self, r: Receptacle) -> str:
        if not r.accessible:
            return f"The {r.name} is closed."
        r.seen = True
        inside = _listed([f"a {thing.name}" for thing in r.things])
        if r.openable:
            return f"The {r.name} is open. In it, you see {inside}."
        return f"On the {r.name}, you see {inside}."

    def _open(self, r: Receptacle) -> str:
        r.is_open = True
        return f"You open the {r.name}. {self._examine(r)}"

    def _close(self, r: Receptacle) -> str:
        r.is_open = False
        return f"You close the {r.name}."

    def _take(self, thing: Thing, r: Receptacle) -> str:
        r.things.remove(thing)
        thing.left.append(r)
        self.held, thing.at = thing, None
        return f"You pick up the {thing.name} from the {r.name}."

    def _move(self, thing: Thing, r: Receptacle) -> str:
        r.things.append(thing)
        r.things.sort(key=lambda t: t.rank)
        if r in thing.left:
            thing.left.remove(r)
        self.held, thing.at = None, r
        return f"You move the {thing.name} to the {r.name}."

    def _treat(self, verb: str, r: Receptacle) -> str:
        held = self._in_hand
        states = held.states
        if verb == "heat":
            states -= {"cool"}
        elif verb == "cool":
            states -= {"hot"}
        states.add("hot" if verb == "heat" else verb)
        return f"You {verb} the {held.name} using the {r.name}."

    def _slice(self, thing: Thing) -> str:
        thing.states.add("sliced")
        return f"You sliced the {thing.name} with the {self._in_hand.name}."

    @property
    def _in_hand(self) -> Thing:
        assert self.held is not None, "The command needs an object in the hand."
        return self.held

    def _use(self, lamp: Thing) -> str:
        lamp.states.add("used")
        return f"You turn on the {lamp.name}."

    def _inspect(self, thing: Thing) -> str:
        name, states = thing.name, thing.states
        if thing.type in self._holders:
            return f"This is a normal {name}. In it, you see nothing."
        if "used" in states:
            return f"This {name} is on."
        warmth = "hot" if "hot" in states else "cool" if "cool" in states else ""
        clean = "clean" if "clean" in states else ""
        sliced = "sliced " if "sliced" in states else ""
        if warmth == "cool" and not clean and not sliced:
            warmth = "cold"
        condition = " and ".join(filter(None, (warmth, clean)))
        if not condition and not sliced:
            return f"There's nothing special about {name}."
        return f"This is a {condition + ' ' if condition else ''}{sliced}{name}."

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_commands": None}


def numbered(types: Sequence[str]) -> list[str]:
    """Return names such as "apple 1", "apple 2", counted by type."""
    counts: dict[str, int] = {}
    names = []
    for type_ in types:
        counts[type_] = counts.get(type_, 0) + 1
        names.append(f"{type_.lower()} {counts[type_]}")
    return names


def _observation_order(named: Receptacle | Thing) -> tuple[str, int]:
    """Return ALFWorld's order: by type, the highest number first."""
    type_, number = named.name.split()
    return type_, -int(number)


def _listed(names: list[str]) -> str:
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"
