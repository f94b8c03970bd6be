"""History of the metrics that alarms read."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from rllib_llm.callbacks import result_keys
from rllib_llm.monitoring.alarms.catalogue import ALARMS, MODULE, TRUNCATED

# Read in addition to the alarms' metrics, to know whether the task is solved.
_ALSO = (result_keys.SUCCESS,)
_RUN_WIDE = tuple(
    {key for a in ALARMS.values() for key in a.reads if not key.startswith(MODULE)}
)
_OF_MODULES = tuple(
    {
        key.removeprefix(MODULE)
        for alarm in ALARMS.values()
        for key in alarm.reads
        if key.startswith(MODULE)
    }
)


# Metrics of updates without sampled rows, too (replay.alone).
_OF_ALL_ROWS = ("total_loss", "grad_norm", "nan_steps_skipped")


class History:
    """The values of past iterations that alarms read, by result key.

    Attributes:
        module_ids: Modules with Learner statistics so far, in order (as keys).
    """

    def __init__(self) -> None:
        self.module_ids: dict[str, None] = {}
        self._values: dict[str, list[tuple[int, float]]] = defaultdict(list)

    def add(self, result: dict[str, Any]) -> None:
        """Append the reported values of an iteration."""
        iteration = int(result[result_keys.ITERATION])
        for key in (*_RUN_WIDE, *_ALSO):
            value = (
                result_keys.truncated(result)
                if key == TRUNCATED
                else _number(result, key)
            )
            # RLlib reports NaN as the mean of no values.
            if value is not None and math.isfinite(value):
                self._values[key].append((iteration, value))
        if result.get("num_updates_skipped"):
            return  # the Learners' results are those of an earlier iteration
        for module_id in result_keys.modules(result):
            self.module_ids.setdefault(module_id)
            replayed = _number(result, f"learners/{module_id}/replay_token_frac")
            for name in _OF_MODULES:
                key = f"learners/{module_id}/{name}"
                value = _number(result, key)
                if value is None:
                    continue
                # Of sampled rows alone: without any, RLlib's mean of no values.
                is_missing = replayed == 1.0 and name not in _OF_ALL_ROWS
                if not (is_missing and math.isnan(value)):
                    self._values[key].append((iteration, value))

    def series(self, key: str, module_id: str | None = None) -> list[float]:
        """Return the values of a key, oldest first."""
        if module_id is not None:
            key = key.replace("<module>", module_id)
        return [value for _, value in self._values.get(key, ())]

    def newest(self, key: str, module_id: str | None = None) -> int:
        """Return the iteration of the newest value of a key, 0 without values."""
        if module_id is not None:
            key = key.replace("<module>", module_id)
        return self._values[key][-1][0] if self._values.get(key) else 0

    def drop_after(self, iteration: int) -> None:
        """Drop the values after an iteration to which the run was rolled back.

        Sampling metrics of the next iteration are kept: it sampled with these weights.
        """
        for key, values in self._values.items():
            last = iteration + (not key.startswith("learners/"))
            self._values[key] = [v for v in values if v[0] <= last]

    def get_state(self) -> dict[str, Any]:
        """Return the state."""
        values = {key: list(values) for key, values in self._values.items()}
        return {"values": values, "module_ids": list(self.module_ids)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state from :meth:`get_state`."""
        values = {k: list(v) for k, v in state["values"].items()}
        self._values = defaultdict(list, values)
        self.module_ids = dict.fromkeys(state["module_ids"])


def _number(result: dict[str, Any], key: str) -> float | None:
    """Return a number of a result, also NaN, unlike ``result_keys.lookup``."""
    value: Any = result
    for part in key.split("/"):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
