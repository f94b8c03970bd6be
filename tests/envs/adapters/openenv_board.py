"""OpenEnv servers of the tests that are not environments of this package."""

import sys

import uvicorn
from openenv.core.env_server import (
    Action,
    Environment,
    Observation,
    State,
    create_fastapi_app,
)


class CellAction(Action):
    """A cell of a board."""

    row: int
    column: int


class CountAction(Action):
    """A number."""

    amount: int


class BoardObservation(Observation):
    """A board."""

    board: list[str]


class Board(Environment):
    """Rewards the cell (1, 2), or the number 7."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None):
        """Start."""
        return BoardObservation(board=["..."] * 3)

    def step(self, action, timeout_s=None):
        """End."""
        right = getattr(action, "amount", None) == 7
        right |= (getattr(action, "row", 0), getattr(action, "column", 0)) == (1, 2)
        return BoardObservation(board=["X"], reward=float(right), done=True)

    @property
    def state(self):
        """Nothing."""
        return State()


def app(kind):
    """Return the application of one kind."""
    if kind == "cells":
        return create_fastapi_app(Board, CellAction, BoardObservation)
    assert kind == "counts"
    return create_fastapi_app(Board, CountAction, BoardObservation)


if __name__ == "__main__":
    uvicorn.run(app(sys.argv[1]), port=int(sys.argv[2]), log_level="error")
