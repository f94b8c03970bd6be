"""Objects in other processes: values, errors, time limits, the end."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import time

import pytest
from child_toys import Sleeper

from rllib_llm.envs import child_process
from rllib_llm.envs.child_process import ChildProcess, EnvProcessError
from rllib_llm.envs.process_env import ProcessEnv


@pytest.fixture
def child():
    made = ChildProcess(
        pickle.dumps(functools.partial(Sleeper, 3)),
        "The sleeper",
        {**os.environ, "SLEEPER": "on the sofa"},
    )
    yield made
    made.kill()


def test_methods_return_values_and_raise_errors(child):
    assert child.pid is None
    assert child.call("add", (4,)) == child.call("add", (), {"more": 4}) == 7
    assert child.call("where") == "on the sofa"
    with pytest.raises(KeyError, match="no such") as caught:
        child.call("fail", timeout_s=60.0)
    assert "in fail" in caught.value.__notes__[0]
    child.close()
    assert child.pid is None


def test_calls_that_take_too_long_end_the_process_and_its_children(child):
    children = child.call("start_children")
    first = child.pid
    began = time.monotonic()
    with pytest.raises(EnvProcessError, match=r"sleep\(\) within 0.2 s and was killed"):
        child.call("sleep", (60.0,), timeout_s=0.2)
    assert time.monotonic() - began < 20.0
    assert child.pid is None
    end = time.monotonic() + 20.0
    while any(map(is_running, children)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, children))
    assert child.call("add", (1,), timeout_s=60.0) == 4 and child.pid != first


def test_a_process_that_ends_is_an_error_and_is_replaced(child):
    with pytest.raises(EnvProcessError, match=r"The sleeper ended with status 3"):
        child.call("exit")
    assert child.call("add", (1,)) == 4


@pytest.mark.parametrize("kind", [ChildProcess, ProcessEnv])
def test_collected_objects_end_their_process_and_its_children(kind):
    made = kind(pickle.dumps(functools.partial(Sleeper, 3)))
    pids = [*made.call("start_children"), made.pid]
    assert all(map(is_running, pids))
    del made
    gc.collect()
    end = time.monotonic() + 20.0
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("how", ["close", "kill", "exit"])
def test_collection_kills_nothing_that_has_ended(monkeypatch, how):
    made, killed = ChildProcess(pickle.dumps(functools.partial(Sleeper, 3))), []
    made.call("add", (1,))
    with contextlib.suppress(EnvProcessError):
        made.call("exit") if how == "exit" else getattr(made, how)()
    # Another process may have the number by now.
    monkeypatch.setattr(child_process.os, "killpg", lambda *call: killed.append(call))
    del made
    gc.collect()
    assert not killed


def is_running(pid):
    """Return whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
