"""Rollback in real training at a much too high learning rate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import guarded


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.learning
def test_rollback_preserves_the_policy_at_a_too_high_rate(ray_session):
    alone, saved, stopped = (guarded.run(a) for a in (None, "rollback", "stop"))
    assert alone["before"] == saved["before"] > 0.3  # the same SFT
    assert alone["after"] < 0.5 * alone["before"]
    assert saved["after"] > 0.8 * saved["before"] and saved["rollbacks"] >= 1
    assert saved["iterations"] == guarded.ITERATIONS
    assert stopped["iterations"] < guarded.ITERATIONS
    assert stopped["stopped_by"] in ("kl", "return_drop", "nan")
