"""Progress lines of preparations."""

from __future__ import annotations

import time

import pytest

from rllib_llm.monitoring.live import lines
from rllib_llm.monitoring.live.algorithm_mixin import preparing


@pytest.fixture
def clock(monkeypatch):
    """Clock in seconds that tests set."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    "make", [lines.progress_lines, lambda: preparing(None)], ids=["bare", "algorithm"]
)
def test_long_preparations_print_progress(clock, capsys, make):
    show = make()
    for second, phase, fraction in (
        (1, "demonstrations", 0.1),
        (6, "demonstrations", 0.25),
        (9, "demonstrations", 0.5),
        (12, "demonstrations", 1.0),
        (14, "SFT", 0.1),
        (23, "SFT", 0.4),
    ):
        clock[0] = 100.0 + second
        show(phase, fraction)
    out, err = capsys.readouterr()
    assert not out
    assert [line.split(": ", 1)[1] for line in err.splitlines()] == [
        "demonstrations 25%, 6 s",
        "demonstrations 100%, 12 s",
        "SFT 40%, 23 s",
    ]


def test_short_preparations_print_nothing(clock, capsys):
    show = lines.progress_lines()
    show("tokenizer", 0.5)
    clock[0] += 4
    show("tokenizer", 1.0)
    assert capsys.readouterr() == ("", "")
