"""Watches a rollout from a thread of its own: how far it is, and who waits for what."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rllib_llm.monitoring.live.board import Publisher

logger = logging.getLogger("rllib_llm")

_PERIOD_S = 0.5
_NAMED = 3  # slots that are named, those that have waited longest


class RolloutMonitor:
    """Says how many episodes are finished, and when sampling stalls.

    A thread, not the loop: an engine or a connector that hangs keeps the loop from
    looking at its own clock.

    Args:
        stall_after_s: Seconds without a finished turn that count as a stall; None:
            never.
        notes: Where progress is announced.
        period_s: Seconds between two looks.
    """

    def __init__(
        self,
        stall_after_s: float | None = None,
        notes: Publisher | None = None,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._after, self._period = stall_after_s, period_s
        self._notes = notes or Publisher(None, "")
        self._finished = 0.0
        self._is_stalled = False
        self._num_stalls, self._longest = 0, 0.0

    @contextlib.contextmanager
    def watching(self, rollout: Any) -> Iterator[None]:
        """Watch while the block runs.

        Args:
            rollout: Has ``slots``, ``num_done``, ``num_tasks`` and
                ``num_unfinished_turns``; read from another thread, and only read.
        """
        self._finished, self._is_stalled = time.perf_counter(), False
        stop = threading.Event()
        thread = threading.Thread(
            target=self._watch,
            args=(rollout, stop),
            name="monitor",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.turn_finished()
            self._announce(rollout, "")

    def turn_finished(self) -> None:
        """Note that the rollout is alive."""
        now = time.perf_counter()
        self._longest = max(self._longest, now - self._finished)
        self._finished, self._is_stalled = now, False

    def take_stats(self) -> tuple[int, float]:
        """Return stalls and the longest time without a finished turn; forget both."""
        stats = self._num_stalls, self._longest
        self._num_stalls, self._longest = 0, 0.0
        return stats

    def _watch(self, rollout: Any, stop: threading.Event) -> None:
        while not stop.wait(self._period):
            waited = time.perf_counter() - self._finished
            stalled = self._after is not None and waited >= self._after
            text = self._describe(rollout, waited) if stalled else ""
            if stalled and not self._is_stalled:
                self._is_stalled = True
                self._num_stalls += 1
                logger.warning("Sampling stalls: %s", text)
            self._announce(rollout, text)

    @staticmethod
    def _describe(rollout: Any, waited: float) -> str:
        waits = describe_waits(rollout.slots, time.perf_counter())
        turns = rollout.num_unfinished_turns
        return (
            f"no turn finished for {waited:.0f} s ({rollout.num_done} of "
            f"{rollout.num_tasks} episodes are done, engines hold {turns} unfinished "
            f"turns). {waits}"
        )

    def _announce(self, rollout: Any, stall: str) -> None:
        self._notes.write(
            done=rollout.num_done, tasks=rollout.num_tasks, stall=stall or None
        )


def describe_waits(slots: Sequence[Any], now: float) -> str:
    """Say what episodes wait for, how many and for how long, the longest named.

    Args:
        slots: The rollout's slots; another thread may change them meanwhile.
        now: ``time.perf_counter()``.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    for slot in slots:
        what, since, task = slot.waiting_for, slot.since, slot.task
        if what is None or task is None:
            continue
        who = f"slot {slot.index}, seed {task.seed}"
        if what == "engine":
            silent = _silent(slot)
            who += f", {silent}" if silent else ""
        found.setdefault(what, []).append((now - since, who))
    names = {"engine": "a turn", "reset": "env.reset", "step": "env.step"}
    parts = []
    for what, waits in sorted(found.items(), key=lambda item: -max(item[1])[0]):
        waits.sort(reverse=True)
        named = "; ".join(f"{who}: {s:.0f} s" for s, who in waits[:_NAMED])
        more = f"; {len(waits) - _NAMED} more" if len(waits) > _NAMED else ""
        parts.append(f"{len(waits)} wait for {names[what]} ({named}{more}).")
    return " ".join(parts) or "No episode is running."


def _silent(slot: Any) -> str:
    """Return the policies whose turns a slot waits for."""
    play = slot.play
    agent_states = [] if play is None else list(play.agent_states)
    return ", ".join(
        sorted({s.module_id for s in agent_states if s.request_id is not None})
    )
