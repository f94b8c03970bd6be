"""Assignment of cache rows to sessions."""

from __future__ import annotations

import torch

from rllib_llm.engines.requests import Session
from rllib_llm.engines.slot_cache import SlotCache


class SlotTable:
    """Assigns cache rows to sessions, evicts idle ones and moves rows.

    Args:
        max_slots: Number of rows.
        max_length: Maximum tokens of a row.
        device: Device of the cache.
        cache_class: Class of the cache.

    Attributes:
        owners: The session of each row, or None.
    """

    def __init__(
        self,
        max_slots: int,
        max_length: int,
        device: torch.device,
        cache_class: type[SlotCache] = SlotCache,
    ) -> None:
        """Create an empty table."""
        self.max_slots = max_slots
        self.cache = cache_class(max_slots, max_length, device)
        self.owners: list[Session | None] = [None] * max_slots
        self._free = list(range(max_slots - 1, -1, -1))  # lowest row last
        self._clock = 0

    def assign(self, session: Session) -> bool:
        """Assign a row to a session without one, evicting an idle session if needed.

        Args:
            session: The session.

        Returns:
            True if it has a row; False if all rows belong to sessions with requests.
        """
        if session.row >= 0:
            return True
        if not self._free:
            idle = [s for s in self.owners if s is not None and s.request is None]
            if not idle:
                return False
            oldest = min(idle, key=lambda s: s.last_used)
            oldest.drop_cache()
            self.release(oldest)
        session.row = self._free.pop()
        self.owners[session.row] = session
        return True

    def release(self, session: Session) -> None:
        """Take a session's row away, if it has one."""
        if session.row >= 0:
            self.owners[session.row] = None
            self._free.append(session.row)
            self._free.sort(reverse=True)
            session.row = -1

    def touch(self, session: Session) -> None:
        """Mark a session as the most recently used."""
        self._clock += 1
        session.last_used = self._clock

    def place(self, sessions: list[Session], first_row: int) -> None:
        """Move sessions to consecutive rows, in any order, with the fewest copies.

        Args:
            sessions: Sessions that have rows.
            first_row: First target row. Other sessions in the target rows move to the
                rows that become vacant.
        """
        target_rows = range(first_row, first_row + len(sessions))
        to_move = [s for s in sessions if s.row not in target_rows]
        if not to_move:
            return
        occupied = {s.row for s in sessions}
        vacant = [row for row in target_rows if row not in occupied]
        moved: list[tuple[int, int, int]] = []  # source, target, length
        for session, target in zip(to_move, vacant, strict=True):
            old, other = session.row, self.owners[target]
            self.owners[target], self.owners[old] = session, other
            session.row = target
            moved.append((old, target, session.cached))
            if other is None:
                self._free[self._free.index(target)] = old
            else:
                other.row = old
                moved.append((target, old, other.cached))
        self._free.sort(reverse=True)  # the lowest row is taken first
        filled = [move for move in moved if move[2] > 0]  # empty rows need no copy
        if filled:
            sources, targets, lengths = zip(*filled, strict=True)
            self.cache.move(list(sources), list(targets), list(lengths))
