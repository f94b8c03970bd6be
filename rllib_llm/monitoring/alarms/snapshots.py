"""Snapshots of the Learners' last good state, for rollbacks."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

MEMORY, DISK = "memory", "disk"
PLACES = (MEMORY, DISK)


@dataclasses.dataclass
class Snapshot:
    """The learned state after an iteration.

    Attributes:
        iteration: Number of training iterations done.
        data: The pickled state; a copy, since arrays may share memory with parameters.
        path: File with the pickled state instead of ``data``.
    """

    iteration: int
    data: bytes | None = None
    path: Path | None = None

    def load(self) -> Any:
        """Return the state."""
        data = self.data if self.path is None else self.path.read_bytes()
        assert data is not None, "A deleted snapshot cannot be loaded."
        return pickle.loads(data)

    def delete(self) -> None:
        """Free the memory, or delete the file."""
        self.data = None
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Snapshots:
    """Keeps the last good state and a newer candidate.

    A candidate becomes good once ``interval`` iterations have passed without an alarm:
    a ruined policy shows only in what it samples next, and most alarms average over
    several iterations.

    Args:
        interval: Iterations between two snapshots.
        place: ``"memory"`` or ``"disk"``.
        folder: Folder for the files.
    """

    def __init__(self, interval: int, place: str, folder: Path) -> None:
        self._interval, self._place, self._folder = interval, place, folder
        self.good: Snapshot | None = None
        self._candidate: Snapshot | None = None
        self._quiet = 0

    def begin(self, iteration: int, state: object) -> None:
        """Store the initial state as the good one."""
        self.good = self._take(iteration, state)

    def is_due(self, *, quiet: bool) -> bool:
        """Count an iteration; return True if :meth:`offer` needs a state."""
        self._quiet = self._quiet + 1 if quiet else 0
        return self._quiet >= self._interval

    def offer(self, iteration: int, state: object) -> None:
        """Promote the candidate and store the current state as the next one."""
        self._quiet = 0
        if self._candidate is not None:
            if self.good is not None:
                self.good.delete()
            self.good = self._candidate
        self._candidate = self._take(iteration, state)

    def reject(self) -> None:
        """Discard the candidate."""
        self._quiet = 0
        if self._candidate is not None:
            self._candidate.delete()
            self._candidate = None

    def close(self) -> None:
        """Delete all snapshots."""
        self.reject()
        if self.good is not None:
            self.good.delete()
            self.good = None

    def _take(self, iteration: int, state: object) -> Snapshot:
        data = pickle.dumps(state)
        if self._place == MEMORY:
            return Snapshot(iteration, data)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"alarm_snapshot_{iteration}.pkl"
        path.write_bytes(data)
        return Snapshot(iteration, path=path)
