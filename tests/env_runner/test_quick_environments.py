"""The sampling loop waits for the replies of quick environments alone."""

from __future__ import annotations

import threading

import pytest

from rllib_llm.env_runner import rollout as rollouts
from rllib_llm.env_runner.rollout import Rollout


class Held:
    """Replies when the event is set."""

    def step(self, event):
        event.wait()
        return "reply"

    def close(self):
        """Do nothing."""


@pytest.fixture
def rollout():
    rollout = Rollout(
        make_env=Held,
        make_recorder=lambda task: None,
        action_sources={},
        env_to_module=lambda **_: {},
        module_to_env=lambda **_: {},
        num_slots=2,
        limits=None,
        module=None,
        on_event=lambda *_: None,
    )
    yield rollout
    rollout.close()


def ask(rollout, index, *, is_quick):
    """Start a call in one slot; it returns when the event is set."""
    event, slot = threading.Event(), rollout.slots[index]
    slot.is_quick = is_quick
    rollout._ask_env(slot, "step", event)
    return event


def test_replies_of_quick_environments_are_awaited(rollout, monkeypatch):
    monkeypatch.setattr(rollouts, "_QUICK_S", 60.0)
    event = ask(rollout, 0, is_quick=True)
    threading.Timer(0.05, event.set).start()
    reply = rollout._next_reply(False)
    assert reply.value == "reply"
    assert 0 < reply.seconds < 60


def test_other_environments_are_not_awaited(rollout, monkeypatch):
    monkeypatch.setattr(rollouts, "_QUICK_S", 60.0)
    event = ask(rollout, 0, is_quick=False)
    assert rollout._next_reply(False) is None
    event.set()


def test_a_call_that_is_longer_than_the_last_is_awaited_once(rollout, monkeypatch):
    monkeypatch.setattr(rollouts, "_QUICK_S", 0.01)
    events = [ask(rollout, i, is_quick=i == 0) for i in range(2)]
    assert rollout._next_reply(False) is None
    assert not rollout.slots[0].is_quick
    for event in events:
        event.set()


def test_idle_engines_wait_for_any_environment(rollout, monkeypatch):
    monkeypatch.setattr(rollouts, "_POLL_S", 60.0)
    event = ask(rollout, 0, is_quick=False)
    threading.Timer(0.05, event.set).start()
    assert rollout._next_reply(True).value == "reply"
