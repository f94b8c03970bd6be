"""Build the data of household-v0 from the wheel of alfworld 0.4.2.

    pip download alfworld==0.4.2 --no-deps
    python scripts/build_household_data.py alfworld-0.4.2-py3-none-any.whl

For each of AI2-THOR's 120 rooms the wheel contains the types of objects and the
position from which each receptacle is reached. It also contains ALFRED's tables of the
receptacles for each type of object, of objects that can be heated, and of the wording
of tasks. No code of the wheel is imported; its tables are parsed as literals.
"""

from __future__ import annotations

import argparse
import ast
import json
import zipfile
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "rllib_llm/envs/data/household.json"
ROOMS = [kind + i for kind in (0, 200, 300, 400) for i in range(1, 31)]
GOALS = {
    "put": "pick_and_place_simple",
    "light": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
TABLE_TOPS = ("CoffeeTable", "DiningTable", "SideTable")
LAMP = "DeskLamp"


def main() -> None:
    """Write the data of the wheel given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="alfworld-0.4.2-py3-none-any.whl")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as wheel:
        data = build(wheel)
    lines = ",\n".join(f"{json.dumps(k)}: {_lines(v)}" for k, v in data.items())
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(f"{{\n{lines}\n}}\n")


def build(wheel: zipfile.ZipFile) -> dict[str, Any]:
    """Return the tables and the rooms."""
    constants = literals(wheel.read("alfworld/gen/constants.py").decode())
    goals = dictionaries(wheel.read("alfworld/gen/goal_library.py").decode())
    fits = dict(constants["VAL_RECEPTACLE_OBJECTS"])
    movable = set(constants["MOVABLE_RECEPTACLES"])
    fits |= dict.fromkeys(TABLE_TOPS, fits.pop("TableTop"))
    # Slices only come about by slicing, which is no task here.
    fits = {
        receptacle: sorted(o for o in objects if not o.endswith("Sliced"))
        for receptacle, objects in sorted(fits.items())
        if receptacle not in movable
    }
    carried = {o for objects in fits.values() for o in objects} | {LAMP}
    able = constants["VAL_ACTION_OBJECTS"]
    names = ("Cleanable", "Heatable", "Coolable", "Sliceable")
    return {
        "fits": fits,
        "able": {n.lower(): sorted(set(able[n]) & carried) for n in names},
        "openable": sorted(set(constants["OPENABLE_CLASS_LIST"]) - movable),
        "holders": sorted(movable),
        "wordings": {task: goals[name]["templates"] for task, name in GOALS.items()},
        "rooms": {str(n): room(wheel, n, fits, carried) for n in ROOMS},
    }


def room(
    wheel: zipfile.ZipFile, number: int, fits: dict[str, list[str]], carried: set[str]
) -> dict[str, Any]:
    """Return a room's receptacles (positions by type) and its types of objects.

    Of receptacles without a position in the wheel there is one per type, at a separate
    position.
    """
    folder = f"alfworld/gen/layouts/FloorPlan{number}"
    points = json.loads(wheel.read(f"{folder}-openable.json"))
    types = set(json.loads(wheel.read(f"{folder}-objects.json")))
    places: dict[tuple[float, ...], int] = {}
    receptacles: dict[str, list[int]] = {}
    # ALFWorld numbers receptacles of a type against the order of their ids.
    for name in sorted(points, key=mangled, reverse=True):
        parts = name.split("|")
        kind = parts[-1] if len(parts) > 4 else parts[0]
        if kind in fits:
            place = places.setdefault(tuple(points[name]), len(places))
            receptacles.setdefault(kind, []).append(place)
    for kind in sorted(types & fits.keys() - receptacles.keys()):
        place = places.setdefault((float(len(places)),), len(places))
        receptacles[kind] = [place]
    return {
        "receptacles": dict(sorted(receptacles.items())),
        "objects": sorted(types & carried),
    }


def mangled(name: str) -> str:
    """Return the id of an object in ALFWorld's planner."""
    for sign, word in zip("-|+.,", ("minus", "bar", "plus", "dot", "comma")):  # noqa: B905
        name = name.replace(sign, f"_{word}_")
    return name.lower()


def literals(source: str) -> dict[str, Any]:
    """Return all top-level assignments of literals."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:  # computed
                continue
    return found


def dictionaries(source: str) -> dict[str, Any]:
    """Return all entries that are assigned as ``gdict["name"] = {...}``."""
    return {
        ast.literal_eval(node.targets[0].slice): ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
    }


def _lines(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    entries = (
        f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}"
        for k, v in value.items()
    )
    return "{\n" + ",\n".join(entries) + "\n}"


if __name__ == "__main__":
    main()
