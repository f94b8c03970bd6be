"""Comparison of two runs: settings and results."""

from __future__ import annotations

from typing import Any

from rllib_llm.callbacks import result_keys
from rllib_llm.runs.folders import differing_keys, flat_recipe
from rllib_llm.runs.reading import Run
from rllib_llm.runs.seed_statistics import Interval, mean_interval

# Metrics that are compared if the runs report them.
SHOWN = (
    result_keys.RETURN,
    result_keys.SUCCESS,
    result_keys.EVAL_RETURN,
    result_keys.EVAL_SUCCESS,
    result_keys.TURNS,
    result_keys.TOKENS_PER_TURN,
    result_keys.INVALID,
    result_keys.SECONDS_TOTAL,
)
_NOT_COMPARED = ("name", "description")


def differences(a: Run, b: Run) -> list[tuple[str, Any, Any]]:
    """Return the dotted keys in which two runs' recipes differ, with both values."""
    first, second = flat_recipe(a.recipe), flat_recipe(b.recipe)
    changed = differing_keys(a.recipe, b.recipe)
    return [
        (key, first.get(key), second.get(key))
        for key in changed
        if key not in _NOT_COMPARED
    ]


def last_values(run: Run) -> dict[str, Interval]:
    """Return mean and interval of the last values of the compared metrics."""
    intervals = {}
    for metric in SHOWN:
        values = [v for t in run.trials if (v := t.last(metric)) is not None]
        if values:
            intervals[metric] = mean_interval(values)
    return intervals
