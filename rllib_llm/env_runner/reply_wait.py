"""Waits of the engines for environments that are about to reply."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllib_llm.env_runner.env_worker import EnvReply
    from rllib_llm.env_runner.slots import Slot

POLL_S = 0.05  # longest wait for a reply; the loop then checks the time limits
QUICK_S = 0.002  # an environment's call that is shorter delays the engines
IN_ENV = ("reset", "step")
_NEW_WEIGHT = 0.25  # of the last duration in a running mean
_SLACK = 2.0  # calls are awaited for this multiple of their mean duration


def observe_call(slot: Slot, seconds: float) -> None:
    """Record the duration of the environment call that the slot waited for."""
    slot.is_quick = seconds < QUICK_S
    # A reset may build the environment, so it says nothing about the next step.
    if slot.waiting_for == "step":
        slot.call_s = _running_mean(slot.call_s, seconds)


def observe_turn(slot: Slot, seconds: float) -> None:
    """Record how long the slot waited for the turns of its agents."""
    slot.turn_s = _running_mean(slot.turn_s, seconds)


def next_reply(
    replies: queue.SimpleQueue[EnvReply], slots: Sequence[Slot], num_turns: int
) -> EnvReply | None:
    """Return a reply, or None if the engines should not wait for one.

    Args:
        replies: The replies of the slots' environments.
        slots, num_turns: See :func:`reply_timeout`.
    """
    try:
        return replies.get_nowait()
    except queue.Empty:
        pass
    timeout = reply_timeout(slots, num_turns, time.perf_counter())
    if not timeout:
        return None
    try:
        return replies.get(timeout=timeout)
    except queue.Empty:
        # Not again during the same calls: they are longer than the last ones were.
        for slot in slots:
            if slot.waiting_for in IN_ENV:
                slot.is_quick = False
        return None


def reply_timeout(slots: Sequence[Slot], num_turns: int, now: float) -> float:
    """Return how long to wait for the next reply before the engines' next step.

    Engines without a turn wait for any environment, and all engines wait for quick
    environments. Engines with few turns also wait for environments that are expected
    to reply in less time than a turn takes, as long as these outnumber the turns: the
    turns then start as one batch. Each call delays the engines by at most twice its
    mean duration. Only the time at which a request joins a batch depends on the wait;
    its seed and so its tokens do not.

    Args:
        slots: The slots.
        num_turns: Turns that the engines are generating or are about to start.
        now: ``time.perf_counter()``.

    Returns:
        Seconds, at most ``POLL_S``; 0.0: the engines do not wait.
    """
    in_env = [slot for slot in slots if slot.waiting_for in IN_ENV]
    if not in_env:
        return 0.0
    if not num_turns:
        return POLL_S
    if any(slot.is_quick for slot in in_env):
        return QUICK_S
    left = [s for s in (_seconds_left(slot, now) for slot in in_env) if s > 0.0]
    return min(max(left), POLL_S) if len(left) > num_turns else 0.0


def _seconds_left(slot: Slot, now: float) -> float:
    """Return how much longer to wait for a slot's reply; <= 0: not at all."""
    if slot.waiting_for != "step" or slot.call_s >= slot.turn_s:
        return 0.0
    return slot.since + _SLACK * slot.call_s - now


def _running_mean(mean: float, seconds: float) -> float:
    """Return the mean with a further duration; 0.0 is the mean of none."""
    return mean + _NEW_WEIGHT * (seconds - mean) if mean else seconds
