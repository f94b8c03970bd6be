"""Histograms: counts, sums, and transport in results."""

from __future__ import annotations

import json

import numpy as np
import pytest
from callback_helpers import make_result

from rllib_llm.callbacks.histograms import (
    LIMITS,
    Histogram,
    log_histograms,
    pop_histograms,
    read_histograms,
    without_histograms,
)


class Metrics:
    """Logger that stores values."""

    def __init__(self):
        self.logged = {}

    def log_value(self, key, value, **kwargs):
        """Log."""
        self.logged[key] = value


def test_limits_are_inclusive():
    values = [-1e9, -0.5, 0.0, 1e-9, 0.5, 1e9]
    histogram = Histogram.of(values)
    filled = np.flatnonzero(histogram.counts)
    for value in values:
        index = np.searchsorted(LIMITS, value)
        assert index in filled and value <= LIMITS[index]
        assert index == 0 or value > LIMITS[index - 1]
    assert histogram.counts.sum() == 6 and histogram.low == -1e9
    assert histogram.high == 1e9 and histogram.squares == pytest.approx(2e18)


def test_non_finite_values_are_excluded():
    assert Histogram.of([np.nan, np.inf]) is None
    assert Histogram.of([1.0, np.nan]).counts.sum() == 1


def test_sum_of_histograms():
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000)
    whole = Histogram.of(values)
    parts = Histogram.of(values[:300]) + Histogram.of(values[300:])
    assert np.array_equal(whole.counts, parts.counts)
    assert (whole.low, whole.high) == (parts.low, parts.high)
    assert whole.total == pytest.approx(parts.total)
    again = Histogram.from_list(json.loads(json.dumps(whole.to_list())))
    assert np.array_equal(again.counts, whole.counts) and again.high == whole.high


def test_histograms_of_a_result_are_summed_and_removed():
    metrics = Metrics()
    log_histograms(metrics, {"returns": [1.0, 2.0], "empty": []})
    log_histograms(metrics, {"advantages": [0.5]}, "default_policy")
    report = metrics.logged["histograms"]
    result = make_result(1, histograms=[report, report])
    result["learners"]["default_policy"]["histograms"] = metrics.logged[
        "default_policy", "histograms"
    ]
    result["evaluation"] = {"env_runners": {"histograms": float("nan")}}
    found = read_histograms(result)
    assert set(found) == {"env_runners/returns", "learners/default_policy/advantages"}
    assert found["env_runners/returns"].counts.sum() == 4
    bare = without_histograms(result)
    assert "histograms" not in bare["env_runners"] and read_histograms(result)
    assert bare["learners"]["default_policy"]["entropy"] == 1.5
    pop_histograms(result)
    assert not read_histograms(result)
