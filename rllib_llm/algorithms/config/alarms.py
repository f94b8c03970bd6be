"""Settings of ``alarms``: monitored metrics, thresholds and actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from annotated_types import Interval
from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
    state,
)
from rllib_llm.monitoring.alarms.catalogue import ALARMS
from rllib_llm.monitoring.alarms.settings import BoundAlarm, bind_alarms
from rllib_llm.monitoring.alarms.snapshots import MEMORY, PLACES
from rllib_llm.schema import NonNegativeFloat, NonNegativeInt, OneOf, PositiveInt

_ALARMS = {
    alarm.name: setting(
        NotProvided, alarm.condition, kind=Mapping[str, Any] | bool | None
    )
    for alarm in ALARMS.values()
}


class AlarmSettings(DeclaredSettings):
    """Settings of ``alarms``."""

    alarm_lr_factor: Annotated[float, Interval(gt=0, lt=1)] = setting(
        0.5, 'Factor of learning rates for "lower_lr" and "rollback".'
    )
    alarm_min_lr: NonNegativeFloat = setting(
        1e-8, "Lower bound of lowered learning rates."
    )
    alarm_max_rollbacks: NonNegativeInt = setting(
        3,
        """Number of rollbacks after which the run continues; the next one stops it. 0:
        the first one stops it.""",
    )
    alarm_snapshot_interval: PositiveInt = setting(
        5,
        """Iterations without alarm between two snapshots; used only if an alarm's
        action is "rollback".""",
    )
    alarm_snapshots: Annotated[str, OneOf(PLACES)] = setting(
        MEMORY, 'Storage of snapshots: "memory" or "disk" of the driver.'
    )

    alarm_settings: dict[str, Mapping[str, Any] | bool | None] = state({})

    @fluent_method(prefix="alarm_", others=_ALARMS)
    def alarms(self, **given: Any) -> Self:
        """Choose what happens when a run goes wrong (docs/alarms.md).

        Every alarm takes a mapping of thresholds and ``action`` ("warn", the default,
        "lower_lr", "rollback" or "stop"), or False, which switches it off.
        """
        given = {k: v for k, v in given.items() if v is not NotProvided}
        alarms = {k: v for k, v in given.items() if k in _ALARMS}
        self.alarm_settings = {**self.alarm_settings, **alarms}
        bind_alarms(self.alarm_settings)
        for key in given.keys() - alarms:
            setattr(self, f"alarm_{key}", given[key])
        return self

    def chosen_alarms(self) -> dict[str, BoundAlarm]:
        """Return the active alarms, by name."""
        return bind_alarms(self.alarm_settings)

    def validate_alarms(self) -> None:
        """Check the settings of all alarms.

        Raises:
            ConfigError: With the value and the rule.
        """
        self.chosen_alarms()
