"""Whole paths through a grid: their cells, collisions, and shortest paths."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rllib_llm.envs.grid import MOVES, Cell, distances, neighbour

START: Cell = (0, 0)
"""First cell of all paths."""


def cells_of(moves: Sequence[str]) -> list[Cell]:
    """Return the cells that a path visits, the start first."""
    cells = [START]
    for move in moves:
        cells.append(neighbour(cells[-1], move))
    return cells


def first_hit(moves: Sequence[str], walls: Collection[Cell]) -> Cell | None:
    """Return the first wall on a path, or None."""
    return next((cell for cell in cells_of(moves) if cell in walls), None)


def shortest_path(goal: Cell, free: Collection[Cell]) -> list[str] | None:
    """Return the moves of a shortest path over ``free`` cells, or None."""
    to_goal = distances(goal, free)
    if START not in to_goal:
        return None
    here, moves = START, []
    while here != goal:
        ways = [m for m in MOVES if neighbour(here, m) in to_goal]
        moves.append(min(ways, key=lambda m: to_goal[neighbour(here, m)]))
        here = neighbour(here, moves[-1])
    return moves


def place(cell: Cell) -> str:
    """Return a cell as row and column, counted from 1."""
    return f"{cell[0] + 1} {cell[1] + 1}"
