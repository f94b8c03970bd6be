"""Start of Ray on a busy machine."""

from __future__ import annotations

import pytest
import ray

from rllib_llm.cli.session import start_ray


@pytest.fixture
def starts(monkeypatch):
    """Replace Ray's start by one that fails with the errors of the list, in turn."""
    calls, errors = [], []

    def init(**options):
        calls.append(options)
        if errors:
            raise Exception(errors.pop(0))

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    return calls, errors


LATE = "The current node timed out during startup."


def test_a_node_that_was_not_up_in_time_is_started_again(starts):
    calls, errors = starts
    errors.append(LATE)
    start_ray(num_cpus=2)
    assert calls == [{"num_cpus": 2}, "shutdown", {"num_cpus": 2}]


@pytest.mark.parametrize("failures", [["no such address"], [LATE, LATE]])
def test_other_failures_and_a_second_one_are_raised(starts, failures):
    calls, errors = starts
    last = failures[-1]
    errors.extend(failures)
    with pytest.raises(Exception, match=last):
        start_ray()
    assert calls.count({}) == len(failures)
