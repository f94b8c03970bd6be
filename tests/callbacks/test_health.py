"""Gauges of the health line agree with docs/live.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from callback_helpers import make_result

from rllib_llm.monitoring.health import GAUGES, readings, state_of

PAGE = Path(__file__).parents[2] / "docs" / "live.md"


def states(result):
    return {reading.name: reading.state for reading in readings(result)}


def test_states_follow_the_bounds():
    result = make_result(1, invalid_action_frac=0.2, success_rate=0.1)
    result["learners"]["default_policy"] |= {"approx_kl_k3": 0.5, "clip_frac": 0.1}
    result["zero_variance_group_frac"] = 0.99
    shown = states(result)
    assert shown["KL"] == "bad" and shown["clip"] == "ok"
    assert shown["invalid"] == "watch" and shown["zero-variance groups"] == "bad"
    assert shown["entropy"] == "ok" and "train-inference mismatch" not in shown


def test_low_entropy_of_a_solved_task_is_ok():
    result = make_result(1, success_rate=0.5)
    result["learners"]["default_policy"]["entropy"] = 0.01
    assert states(result)["entropy"] == "bad"
    result["env_runners"]["success_rate"] = 0.95
    assert states(result)["entropy"] == "ok"


def test_truncated_sums_three_stop_reasons():
    stop = {"max_tokens_turn": 0.2, "context_overflow": 0.2, "terminated": 0.6}
    assert states(make_result(1, stop=stop))["truncated"] == "bad"


@pytest.mark.parametrize("gauge", GAUGES, ids=lambda g: g.name)
def test_bounds_are_those_of_the_page(gauge):
    row = re.search(rf"^\| {gauge.name} \|.*$", PAGE.read_text(), re.MULTILINE)
    assert row, f"docs/live.md has no row for {gauge.name}"
    bounds = [float(b) for b in re.findall(r"(?:at most|at least) ([\d.]+)", row[0])]
    assert bounds == [gauge.ok, gauge.watch]
    assert ("at least" in row[0]) == gauge.falls
    assert state_of(gauge, gauge.ok) == "ok" and state_of(gauge, gauge.watch) != "bad"
