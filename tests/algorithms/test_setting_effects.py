"""Every setting changes its documented effect, an ignored one does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from setting_table import PROBES

from rllib_llm.algorithms.config import check_calls
from rllib_llm.algorithms.config.schema import settings_of
from rllib_llm.algorithms.registry import ALGORITHMS


def alike(a: Any, b: Any) -> bool:
    """Return whether two effects are equal, up to rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and np.allclose(
            a, b, rtol=1e-4, atol=1e-6, equal_nan=True
        )
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return False  # one for the episode, one per turn
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.isclose(a, b, rtol=1e-5, equal_nan=True))
    return bool(a == b)


@pytest.mark.slow  # not one by one, but they are many
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")  # Ray Data would start a Ray of its own
@pytest.mark.parametrize("path", PROBES)
def test_a_setting_has_its_effect(path, monkeypatch):
    effect = PROBES[path]
    seen = [effect.seen(path, value) for value in effect.values]
    assert not alike(*seen), f"{path} changes nothing."
    section, _, key = path.partition(".")
    check = check_calls.check_keywords

    def ignore(config: Any, name: str, given: dict[str, Any]) -> None:
        if name == section:
            given.pop(key, None)
        check(config, name, given)

    monkeypatch.setattr(check_calls, "check_keywords", ignore)
    ignored = [effect.seen(path, value) for value in effect.values]
    assert alike(*ignored), f"What is seen of {path} changes by itself."


def test_every_setting_has_an_effect_that_is_looked_for():
    listed = {
        path
        for name in ALGORITHMS
        for path in settings_of(ALGORITHMS.get(name).config_class())
    }
    missing = "Give them a probe, or a reason in rllib_kinds.WITHOUT_EFFECT."
    assert listed - set(PROBES) == set(), missing
    assert set(PROBES) - listed == set(), "There are no such settings."
