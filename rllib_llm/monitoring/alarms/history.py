"""What alarms remember of past iterations."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from rllib_llm.callbacks import keys
from rllib_llm.monitoring.alarms.catalogue import ALARMS, MODULE, TRUNCATED

# Read besides what alarms name: whether the task is solved.
_ALSO = (keys.SUCCESS,)
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


class History:
    """The values of past iterations that alarms read, by result key.

    Attributes:
        module_ids: Modules that Learners have reported of, as keys.
    """

    def __init__(self) -> None:
        self.module_ids: dict[str, None] = {}
        self._values: dict[str, list[tuple[int, float]]] = defaultdict(list)

    def add(self, result: dict[str, Any]) -> None:
        """Remember an iteration; what it does not report is left out."""
        iteration = int(result[keys.ITERATION])
        for key in (*_RUN_WIDE, *_ALSO):
            value = keys.truncated(result) if key == TRUNCATED else _number(result, key)
            # A mean of nothing is NaN in RLlib's results.
            if value is not None and math.isfinite(value):
                self._values[key].append((iteration, value))
        if result.get("num_updates_skipped"):
            return  # what Learners reported is of an earlier iteration
        for module_id in keys.modules(result):
            self.module_ids.setdefault(module_id)
            for name in _OF_MODULES:
                key = f"learners/{module_id}/{name}"
                value = _number(result, key)
                if value is not None:
                    self._values[key].append((iteration, value))

    def series(self, key: str, module_id: str | None = None) -> list[float]:
        """Return a key's values, oldest first."""
        if module_id is not None:
            key = key.replace("<module>", module_id)
        return [value for _, value in self._values.get(key, ())]

    def newest(self, key: str, module_id: str | None = None) -> int:
        """Return the iteration of a key's newest value, 0 if there is none."""
        if module_id is not None:
            key = key.replace("<module>", module_id)
        return self._values[key][-1][0] if self._values.get(key) else 0

    def forget_after(self, iteration: int) -> None:
        """Forget what came after an iteration that was gone back to.

        What the next one sampled, it sampled with these very weights.
        """
        for key, values in self._values.items():
            last = iteration + (not key.startswith("learners/"))
            self._values[key] = [v for v in values if v[0] <= last]

    def get_state(self) -> dict[str, Any]:
        """Return what is remembered."""
        values = {key: list(values) for key, values in self._values.items()}
        return {"values": values, "module_ids": list(self.module_ids)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Bring back :meth:`get_state`'s answer."""
        values = {k: list(v) for k, v in state["values"].items()}
        self._values = defaultdict(list, values)
        self.module_ids = dict.fromkeys(state["module_ids"])


def _number(result: dict[str, Any], key: str) -> float | None:
    """Return a number, NaN included."""
    value: Any = result
    for part in key.split("/"):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
