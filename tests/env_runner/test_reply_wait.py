"""Waits of the engines for environments that are about to reply."""

from __future__ import annotations

import pytest

from rllib_llm.env_runner.reply_wait import (
    POLL_S,
    QUICK_S,
    observe_call,
    observe_turn,
    reply_timeout,
)
from rllib_llm.env_runner.slots import Slot


def in_step(call_s=0.01, turn_s=0.1, since=0.0, **fields):
    """Return a slot whose environment steps."""
    fields = {"waiting_for": "step", **fields}
    return Slot(0, None, since=since, call_s=call_s, turn_s=turn_s, **fields)


def test_idle_engines_wait_for_any_environment():
    slow = in_step(call_s=60.0, since=-50.0)
    assert reply_timeout([slow], 0, 0.0) == POLL_S
    assert reply_timeout([in_step(0.0, 0.0, waiting_for="reset")], 0, 0.0) == POLL_S


@pytest.mark.parametrize("waiting_for", [None, "engine"])
@pytest.mark.parametrize("num_turns", [0, 1])
def test_without_a_call_of_an_environment_nothing_is_awaited(waiting_for, num_turns):
    slots = [in_step(waiting_for=waiting_for, is_quick=True) for _ in range(4)]
    assert reply_timeout(slots, num_turns, 0.0) == 0.0


def test_quick_environments_are_awaited_briefly():
    assert reply_timeout([in_step(is_quick=True)], 9, 0.0) == QUICK_S


def test_replies_that_outnumber_the_turns_are_awaited():
    slots = [in_step(), in_step(call_s=0.005)]
    assert reply_timeout(slots, 1, 0.0) == pytest.approx(0.02)
    assert reply_timeout(slots, 2, 0.0) == 0.0


def test_a_call_is_awaited_for_twice_its_mean_duration():
    slots = [in_step(), in_step()]
    assert reply_timeout(slots, 1, 0.015) == pytest.approx(0.005)
    assert reply_timeout(slots, 1, 0.02) == 0.0
    late = [in_step(), in_step(since=0.01)]
    assert reply_timeout(late, 1, 0.0199) == pytest.approx(0.0101)
    assert reply_timeout(late, 1, 0.021) == 0.0  # one is left, as many as the turns


def test_environments_that_are_slower_than_a_turn_are_not_awaited():
    assert reply_timeout([in_step(call_s=0.2), in_step(call_s=0.1)], 1, 0.0) == 0.0


def test_environments_without_a_measured_step_are_not_awaited():
    slots = [in_step(call_s=0.0), in_step(waiting_for="reset")]
    assert reply_timeout(slots, 1, 0.0) == 0.0


def test_no_wait_is_longer_than_the_check_of_the_time_limits():
    assert reply_timeout([in_step(1.0, 9.0), in_step(1.0, 9.0)], 1, 0.0) == POLL_S


def test_durations_are_averaged():
    slot = in_step(0.0, 0.0)
    observe_call(slot, 0.01)
    assert (slot.call_s, slot.is_quick) == (0.01, False)
    observe_call(slot, 0.001)
    assert (slot.call_s, slot.is_quick) == (pytest.approx(0.00775), True)
    observe_turn(slot, 0.2)
    observe_turn(slot, 0.6)
    assert slot.turn_s == pytest.approx(0.3)


def test_a_reset_is_no_measure_of_steps():
    slot = in_step(waiting_for="reset")
    observe_call(slot, 5.0)
    assert slot.call_s == 0.01
