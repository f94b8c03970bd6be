"""The last good state of the Learners, kept while training goes on."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

MEMORY, DISK = "memory", "disk"
PLACES = (MEMORY, DISK)


@dataclasses.dataclass
class Snapshot:
    """What the Learners (and what learns on the driver) were after an iteration.

    Attributes:
        iteration: Training iterations behind it.
        data: Pickled; a copy, since arrays may share memory with parameters.
        path: The file that holds it instead.
    """

    iteration: int
    data: bytes | None = None
    path: Path | None = None

    def load(self) -> Any:
        """Return the state."""
        return pickle.loads(self.data if self.path is None else self.path.read_bytes())

    def delete(self) -> None:
        """Free the memory or the disk."""
        self.data = None
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Snapshots:
    """Keeps a state that proved good, and a newer one that has yet to.

    A state is good once ``interval`` iterations have passed after it without an alarm:
    what ruins a policy shows only in what it samples next, and most alarms look at
    several iterations.

    Args:
        interval: Iterations between two snapshots.
        place: "memory" or "disk".
        folder: Where files go.
    """

    def __init__(self, interval: int, place: str, folder: Path) -> None:
        self._interval, self._place, self._folder = interval, place, folder
        self.good: Snapshot | None = None
        self._candidate: Snapshot | None = None
        self._quiet = 0

    def begin(self, iteration: int, state: Any) -> None:
        """Take what the run begins with for good."""
        self.good = self._take(iteration, state)

    def is_due(self, *, quiet: bool) -> bool:
        """Count an iteration; say whether a state is to be handed to :meth:`offer`."""
        self._quiet = self._quiet + 1 if quiet else 0
        return self._quiet >= self._interval

    def offer(self, iteration: int, state: Any) -> None:
        """Promote the candidate and keep the state of now as the next one."""
        self._quiet = 0
        if self._candidate is not None:
            if self.good is not None:
                self.good.delete()
            self.good = self._candidate
        self._candidate = self._take(iteration, state)

    def reject(self) -> None:
        """Forget what came after the good state."""
        self._quiet = 0
        if self._candidate is not None:
            self._candidate.delete()
            self._candidate = None

    def close(self) -> None:
        """Delete everything."""
        self.reject()
        if self.good is not None:
            self.good.delete()
            self.good = None

    def _take(self, iteration: int, state: Any) -> Snapshot:
        data = pickle.dumps(state)
        if self._place == MEMORY:
            return Snapshot(iteration, data)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"alarm_snapshot_{iteration}.pkl"
        path.write_bytes(data)
        return Snapshot(iteration, path=path)
