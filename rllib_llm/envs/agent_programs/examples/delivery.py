"""A task for two policies: one names a door, the other walks to it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

DOORS = ("red", "blue", "gold", "pink", "gray", "teal")
_DOOR = re.compile(rf"\b({'|'.join(DOORS)})\b", re.IGNORECASE)
PLANNER, WORKER = "planner", "worker"


def task(seed: int, split: str) -> dict[str, Any]:
    """Return a task: the doors, and the one behind which the goods are.

    Tasks of both splits are drawn alike, because an unseen door cannot be inferred.
    """
    rng = np.random.default_rng((seed, split == "test"))
    doors = DOORS[:4]
    return {"doors": list(doors), "goods": str(rng.choice(doors))}


def planner_prompt(task: dict[str, Any]) -> str:
    """Return the planner's message."""
    return f"Goods: {task['goods']}. Doors: {' '.join(task['doors'])}. Say one."


def worker_prompt(task: dict[str, Any], plan: str) -> str:
    """Return the worker's message, which does not contain the goods."""
    named = door_in(plan, task) or "nothing"
    return f"planner says {named}. Doors: {' '.join(task['doors'])}. Walk to one."


def door_in(text: str, task: dict[str, Any]) -> str | None:
    """Return the last of the task's doors in a text."""
    named = [d.lower() for d in _DOOR.findall(text)]
    return next((d for d in reversed(named) if d in task["doors"]), None)


def reward(task: dict[str, Any], result: Any) -> float:
    """Return 1 if the program's result names the right door."""
    return float(door_in(str(result), task) == task["goods"])


def expert_reply(
    model: str, messages: list[dict[str, str]], task: dict[str, Any], rng: Any
) -> str:
    """Return the goods as the planner, and the planner's word as the worker."""
    if model == PLANNER:
        return task["goods"]
    word = messages[-1]["content"].partition(".")[0]
    return door_in(word, task) or task["doors"][0]


def random_reply(
    model: str,
    messages: list[dict[str, str]],
    task: dict[str, Any],
    rng: np.random.Generator,
) -> str:
    """Return any door."""
    return str(rng.choice(task["doors"]))
