"""Every setting changes its documented effect, an ignored one does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.rllib
from setting_table import PROBES

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.config import calls
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
@pytest.mark.parametrize("path", PROBES)
def test_a_setting_has_its_effect(path, monkeypatch):
    effect = PROBES[path]
    seen = [effect.seen(path, value) for value in effect.values]
    assert not alike(*seen), f"{path} changes nothing."
    section, _, key = path.partition(".")
    check = calls.check_keywords

    def ignore(config: Any, name: str, given: dict[str, Any]) -> None:
        if name == section:
            given.pop(key, None)
        check(config, name, given)

    monkeypatch.setattr(calls, "check_keywords", ignore)
    ignored = [effect.seen(path, value) for value in effect.values]
    assert alike(*ignored), f"What is seen of {path} changes by itself."


def read_by_rllib() -> dict[str, Any]:
    """Settings of RLlib that only RLlib's own code acts on, by their path."""
    found = {}
    for name in ALGORITHMS:
        for path, setting in settings_of(ALGORITHMS.get(name).config_class()).items():
            if setting.is_rllib and path not in PROBES:
                found[path] = setting
    return found


def test_every_setting_has_an_effect_that_is_looked_for():
    known = set(PROBES) | set(read_by_rllib())
    listed = {
        path
        for name in ALGORITHMS
        for path in settings_of(ALGORITHMS.get(name).config_class())
    }
    assert listed - known == set(), "Say in PROBES where these settings show."
    assert known - listed == set(), "There are no such settings."


def test_rllib_reads_what_is_left_to_it():
    """Those that nothing reads belong into rllib_kinds.WITHOUT_EFFECT."""
    folder = Path(ray.rllib.__file__).parent
    parts = ("algorithms/algorithm*.py", "algorithms/ppo/**/*.py", "env/*.py")
    parts += ("core/**/*.py", "utils/**/*.py", "connectors/**/*.py", "callbacks/*.py")
    sources = [path.read_text() for part in parts for path in folder.glob(part)]
    package = Path(GRPOConfig.__init__.__code__.co_filename).parents[2]
    sources += [path.read_text() for path in package.rglob("*.py")]
    text = "\n".join(sources)
    unread = [
        path
        for path, setting in read_by_rllib().items()
        if not re.search(rf"\.{setting.attribute}\b(?!\s*[:=]\s*[^=])", text)
    ]
    assert unread == []
