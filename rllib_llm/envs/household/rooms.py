"""AI2-THOR's rooms, and ALFRED's tables of receptacles and possible actions.

The data are derived from alfworld 0.4.2 (MIT) by scripts/build_household_data.py.
"""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from pathlib import Path

_DATA = Path(__file__).parent.parent / "data" / "household.json"

KINDS = ("kitchen", "living room", "bedroom", "bathroom")
TEST_NUMBERS = range(27, 31)
"""Numbers, among the thirty rooms of a kind, that are reserved for tests."""

LAMP = "DeskLamp"
APPLIANCES = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
ABLE = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}


@dataclasses.dataclass(frozen=True)
class Room:
    """A room of AI2-THOR.

    Attributes:
        name: Number in AI2-THOR, e.g. "301".
        kind: One of ``KINDS``.
        unseen: Whether it is reserved for the test split.
        receptacles: Type and place of each, in the order of their numbers by type.
        objects: Types of objects in the room.
    """

    name: str
    kind: str
    unseen: bool
    receptacles: tuple[tuple[str, int], ...]
    objects: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class House:
    """All rooms, and the rules common to them.

    Attributes:
        rooms: Rooms by kind.
        fits: Types of objects that each type of receptacle can hold.
        able: Types of objects that are cleanable, heatable, coolable, sliceable.
        openable: Types of receptacles that can be opened.
        holders: Types of objects that can hold other objects.
        wordings: Wordings of each task.
    """

    rooms: dict[str, tuple[Room, ...]]
    fits: dict[str, frozenset[str]]
    able: dict[str, frozenset[str]]
    openable: frozenset[str]
    holders: frozenset[str]
    wordings: dict[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def house() -> House:
    """Return the data, shared by the environments of a process."""
    data = json.loads(_DATA.read_text())
    rooms: dict[str, list[Room]] = {kind: [] for kind in KINDS}
    for name, fields in data["rooms"].items():
        hundreds, number = divmod(int(name), 100)
        kind = KINDS[max(0, hundreds - 1)]  # kitchens are 1 to 30, the next 201 on
        receptacles = tuple(
            (type_, place)
            for type_, places in fields["receptacles"].items()
            for place in places
        )
        unseen = number in TEST_NUMBERS
        room = Room(name, kind, unseen, receptacles, tuple(fields["objects"]))
        rooms[kind].append(room)
    return House(
        rooms={kind: tuple(of_kind) for kind, of_kind in rooms.items()},
        fits={k: frozenset(v) for k, v in data["fits"].items()},
        able={k: frozenset(v) for k, v in data["able"].items()},
        openable=frozenset(data["openable"]),
        holders=frozenset(data["holders"]),
        wordings={k: tuple(v) for k, v in data["wordings"].items()},
    )
