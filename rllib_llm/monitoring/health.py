"""Health gauges of a run with documented thresholds (docs/live.md)."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_llm.callbacks import result_keys
from rllib_llm.callbacks.result_keys import lookup, lookup_learner

OK, WATCH, BAD = "ok", "watch", "bad"
SOLVED = 0.9  # mean success from which low entropy and variance are expected


@dataclasses.dataclass(frozen=True)
class Gauge:
    """A metric and its bounds.

    Attributes:
        name: Its name in the health line.
        key: Result key; with ``of_learners`` the part below the module.
        ok: Largest value that is ok (smallest, if ``falls``).
        watch: Largest value that is not bad (smallest, if ``falls``).
        form: Format specification.
        falls: Whether low values are bad.
        unless_solved: Whether every value is ok once the task is solved.
        of_learners: Whether to read the mean over policies.
    """

    name: str
    key: str
    ok: float
    watch: float
    form: str = ".0%"
    falls: bool = False
    unless_solved: bool = False
    of_learners: bool = False


GAUGES = (
    Gauge("KL", result_keys.KL, 0.02, 0.1, ".4f", of_learners=True),
    Gauge("clip", result_keys.CLIP, 0.2, 0.4, ".2f", of_learners=True),
    Gauge(
        "entropy",
        result_keys.ENTROPY,
        0.1,
        0.02,
        ".3f",
        falls=True,
        unless_solved=True,
        of_learners=True,
    ),
    Gauge(
        "zero-variance groups",
        result_keys.ZERO_VARIANCE_GROUPS,
        0.7,
        0.95,
        unless_solved=True,
    ),
    Gauge("invalid", result_keys.INVALID, 0.05, 0.3),
    Gauge("truncated", "truncated", 0.05, 0.3),
    Gauge(
        "train-inference mismatch",
        result_keys.TRAIN_INFERENCE_MISMATCH,
        0.02,
        0.1,
        ".1e",
        of_learners=True,
    ),
    Gauge(
        "policy staleness",
        result_keys.POLICY_STALENESS,
        1.0,
        4.0,
        ".1f",
        of_learners=True,
    ),
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """A gauge's value in one result.

    Attributes:
        name: Name of the gauge.
        value: The formatted value.
        state: "ok", "watch" or "bad".
    """

    name: str
    value: str
    state: str


def readings(result: dict[str, Any]) -> list[Reading]:
    """Return the readings of the gauges whose metrics the result has."""
    success = lookup(result, result_keys.SUCCESS)
    solved = success is not None and success >= SOLVED
    available = []
    for gauge in GAUGES:
        value = _value(gauge, result)
        if value is not None:
            state = OK if solved and gauge.unless_solved else state_of(gauge, value)
            available.append(Reading(gauge.name, format(value, gauge.form), state))
    return available


def state_of(gauge: Gauge, value: float) -> str:
    """Return the state of a value."""
    sign = -1.0 if gauge.falls else 1.0
    if sign * value <= sign * gauge.ok:
        return OK
    return WATCH if sign * value <= sign * gauge.watch else BAD


def _value(gauge: Gauge, result: dict[str, Any]) -> float | None:
    if gauge.key == "truncated":
        return result_keys.truncated(result)
    if gauge.of_learners:
        return lookup_learner(result, gauge.key)
    return lookup(result, gauge.key)
