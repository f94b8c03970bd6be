"""Thread that reports a rollout's progress and detects stalls."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rllib_llm.monitoring.live.board import Publisher

if TYPE_CHECKING:
    from rllib_llm.env_runner.rollout import Rollout
    from rllib_llm.env_runner.slots import Slot

logger = logging.getLogger("rllib_llm")

_PERIOD_S = 0.5
_MAX_LISTED = 3  # slots named per kind of wait, the longest waits first


class RolloutMonitor:
    """Publishes how many episodes are finished and warns when sampling stalls.

    It runs in its own thread: if an engine or a connector hangs, the sampling loop
    cannot check its own clock.

    Args:
        stall_after_s: Seconds without a finished turn that count as a stall; None
            disables the check.
        publisher: Receives the progress.
        period_s: Seconds between two checks.
    """

    def __init__(
        self,
        stall_after_s: float | None = None,
        publisher: Publisher | None = None,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._after, self._period = stall_after_s, period_s
        self._publisher = publisher or Publisher(None, "")
        self._finished = 0.0
        self._is_stalled = False
        self._num_stalls, self._longest = 0, 0.0

    @contextlib.contextmanager
    def watching(self, rollout: Rollout) -> Iterator[None]:
        """Watch while the block runs.

        Args:
            rollout: Has ``slots``, ``num_done``, ``num_tasks`` and
                ``num_unfinished_turns``. Another thread writes them; the monitor only
                reads.
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
            # Count the wait since the last turn, then clear a stall shown to the user.
            self.turn_finished()
            self._announce(rollout, "")

    def turn_finished(self) -> None:
        """Reset the clock of the stall check."""
        now = time.perf_counter()
        self._longest = max(self._longest, now - self._finished)
        self._finished, self._is_stalled = now, False

    def take_stats(self) -> tuple[int, float]:
        """Return and reset the number of stalls and the longest wait in seconds."""
        stats = self._num_stalls, self._longest
        self._num_stalls, self._longest = 0, 0.0
        return stats

    def _watch(self, rollout: Rollout, stop: threading.Event) -> None:
        while not stop.wait(self._period):
            waited = time.perf_counter() - self._finished
            stalled = self._after is not None and waited >= self._after
            text = self._describe(rollout, waited) if stalled else ""
            if stalled and not self._is_stalled:  # one warning per stall
                self._is_stalled = True
                self._num_stalls += 1
                logger.warning("Sampling stalls: %s", text)
            self._announce(rollout, text)

    @staticmethod
    def _describe(rollout: Rollout, waited: float) -> str:
        waits = describe_waits(rollout.slots, time.perf_counter())
        turns = rollout.num_unfinished_turns
        return (
            f"no turn finished for {waited:.0f} s ({rollout.num_done} of "
            f"{rollout.num_tasks} episodes are done, engines hold {turns} unfinished "
            f"turns). {waits}"
        )

    def _announce(self, rollout: Rollout, stall: str) -> None:
        self._publisher.write(
            done=rollout.num_done, tasks=rollout.num_tasks, stall=stall or None
        )


def describe_waits(slots: Sequence[Any], now: float) -> str:
    """Return a text on the waits of episodes: for what, how many, and how long.

    Args:
        slots: The rollout's slots, which another thread may change at any time.
        now: ``time.perf_counter()``.
    """
    waits_by_kind: dict[str, list[tuple[float, str]]] = {}
    for slot in slots:
        # Read each attribute once: the sampling loop may free the slot meanwhile.
        what, since, task = slot.waiting_for, slot.since, slot.task
        if what is None or task is None:
            continue
        who = f"slot {slot.index}, seed {task.seed}"
        if what == "engine":
            policies = _pending_policies(slot)
            who += f", {policies}" if policies else ""
        waits_by_kind.setdefault(what, []).append((now - since, who))
    names = {"engine": "a turn", "reset": "env.reset", "step": "env.step"}
    parts = []
    for what, waits in sorted(waits_by_kind.items(), key=lambda kv: -max(kv[1])[0]):
        waits.sort(reverse=True)
        listed = "; ".join(f"{who}: {s:.0f} s" for s, who in waits[:_MAX_LISTED])
        more = f"; {len(waits) - _MAX_LISTED} more" if len(waits) > _MAX_LISTED else ""
        parts.append(f"{len(waits)} wait for {names[what]} ({listed}{more}).")
    return " ".join(parts) or "No episode is running."


def _pending_policies(slot: Slot) -> str:
    """Return the policies whose turns a slot waits for."""
    recorder = slot.recorder
    agent_states = [] if recorder is None else list(recorder.agent_states)
    return ", ".join(
        sorted({s.module_id for s in agent_states if s.request_id is not None})
    )
