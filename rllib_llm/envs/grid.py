"""Shared parts of the grid worlds: moves, their text form, and walking distances."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection

from rllib_llm.envs.parsing import last_match

Cell = tuple[int, int]
"""Row and column, counted from the top left."""

MOVES: dict[str, Cell] = {
    "left": (0, -1),
    "down": (1, 0),
    "right": (0, 1),
    "up": (-1, 0),
}
"""Offsets of the four moves, in the order of Gymnasium's toy-text actions."""

MOVE_FORMAT = "Say go left, go down, go right or go up."

_MOVE = re.compile(r"\bgo[ \t]+(left|down|right|up)\b", re.IGNORECASE)


def parse_move(completion: str) -> str | None:
    """Return the last ``go <direction>`` of the text, or None."""
    match = last_match(_MOVE, completion)
    return match.group(1).lower() if match else None


def neighbour(cell: Cell, move: str) -> Cell:
    """Return the cell one ``move`` away; it may be outside of the grid."""
    row, column = cell
    down, right = MOVES[move]
    return row + down, column + right


def distances(start: Cell, free: Collection[Cell]) -> dict[Cell, int]:
    """Return the number of moves from ``start`` to every reachable cell.

    Args:
        start: Start of the walk; it need not be in ``free``.
        free: Cells that can be entered.
    """
    steps = {start: 0}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            following = neighbour(cell, move)
            if following in free and following not in steps:
                steps[following] = steps[cell] + 1
                queue.append(following)
    return steps
