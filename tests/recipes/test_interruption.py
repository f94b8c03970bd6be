"""A first signal ends a run in order, a second one at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types

import pytest
from ray.tune.result import SHOULD_CHECKPOINT

from rllib_llm.recipes.interruption import SaveAndStop, interruptible


@pytest.fixture
def usr1():
    """Count SIGUSR1, the signal that interrupts Tune."""
    received = []
    before = signal.signal(signal.SIGUSR1, lambda *_: received.append(1))
    yield received
    signal.signal(signal.SIGUSR1, before)


def trial(name, status="RUNNING"):
    return types.SimpleNamespace(trial_id=name, status=status, RUNNING="RUNNING")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_trials_are_saved_before_tune_is_interrupted(number, usr1, capfd):
    callback, a, b = SaveAndStop(), trial("a"), trial("b")
    trials = [a, b, trial("c", "PENDING")]
    before = signal.getsignal(number)
    with interruptible() as interruption, interruption.training():
        result = {}
        callback.on_trial_result(1, trials, a, result)
        callback.on_checkpoint(1, trials, a)
        callback.on_step_end(1, trials)
        assert result == {} and not usr1  # nobody asked
        os.kill(os.getpid(), number)
        assert interruption.status == 128 + number
        for each in (a, b):
            callback.on_step_end(1, trials)
            assert not usr1
            result = {}
            callback.on_trial_result(1, trials, each, result)
            assert result == {SHOULD_CHECKPOINT: True}
            callback.on_step_end(1, trials)
            assert not usr1
            callback.on_checkpoint(1, trials, each)
        callback.on_step_end(1, trials)
        assert usr1 == [1]
    assert signal.getsignal(number) == before
    name = signal.Signals(number).name
    assert (
        f"{name} received: the run stops after this iteration" in capfd.readouterr()[1]
    )


def test_trials_that_ended_are_not_waited_for(usr1):
    callback, a = SaveAndStop(), trial("a")
    with interruptible() as interruption, interruption.training():
        os.kill(os.getpid(), signal.SIGTERM)
        callback.on_step_end(1, [a])
        assert not usr1
        a.status = "ERROR"
        callback.on_step_end(1, [a])
        assert usr1 == [1]


def test_signal_before_training_ends_the_command(capfd):
    with (
        pytest.raises(SystemExit) as exit_,
        interruptible() as interruption,
        interruption.training(),
        interruption.preparing(),
    ):
        os.kill(os.getpid(), signal.SIGTERM)
    assert exit_.value.code == 143
    assert "SIGTERM received: stopped before training began" in capfd.readouterr()[1]


_TWICE = """
import os, signal, sys, time
from rllib_llm.recipes.interruption import interruptible
with interruptible() as interruption, interruption.training():
    for name in sys.argv[1:]:
        os.kill(os.getpid(), getattr(signal, name))
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("signals", "status"),
    [(("SIGTERM", "SIGTERM"), 143), (("SIGTERM", "SIGINT"), 130)],
)
def test_a_second_signal_ends_the_process_at_once(signals, status):
    done = subprocess.run(
        [sys.executable, "-c", _TWICE, *signals],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status
    assert f"{signals[1]} received twice: stopped" in done.stderr
