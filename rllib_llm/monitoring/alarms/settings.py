"""Settings of alarms from a config, validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.monitoring.alarms.catalogue import ACTIONS, ALARMS, WARN, Alarm
from rllib_llm.schema import is_number, show

_ACTION, _SOLVED, _COOLDOWN = "action", "solved", "cooldown"
_COUNTS = ("window", "baseline", "history", _COOLDOWN)


@dataclasses.dataclass(frozen=True)
class BoundAlarm:
    """An alarm with the settings of a run.

    Attributes:
        alarm: The alarm.
        thresholds: Keyword arguments of its detector.
        action: The action when it fires.
        solved: Mean success from which the alarm is silent; None: never silent.
        cooldown: Iterations until the action is repeated while the condition holds.
    """

    alarm: Alarm
    thresholds: dict[str, Any]
    action: str = WARN
    solved: float | None = None
    cooldown: int = 5


def bind_alarms(given: Mapping[str, Any]) -> dict[str, BoundAlarm]:
    """Return the active alarms by name, with settings merged into the defaults.

    Args:
        given: Settings by alarm; True, an empty mapping or a missing key for the
            defaults, False to switch the alarm off.

    Raises:
        ConfigError: An alarm, setting, action or value is invalid.
    """
    for name in given:
        if name not in ALARMS:
            raise ConfigError(f"Unknown alarm {name!r}. {did_you_mean(name, ALARMS)}")
    return {
        name: _bind(alarm, given.get(name, True))
        for name, alarm in ALARMS.items()
        if given.get(name, True) is not False
    }


def _bind(alarm: Alarm, given: object) -> BoundAlarm:
    if given is True or given is None:
        given = {}
    if not isinstance(given, Mapping):
        example = dict(list(alarm.thresholds.items())[:1])
        raise ConfigError(
            f"alarms.{alarm.name}={show(given)} must be a mapping such as "
            f"{ {**example, _ACTION: WARN} }, true, or false to switch it off."
        )
    solved = {_SOLVED: 0.9} if alarm.unless_solved else {}
    settings = {**alarm.thresholds, _ACTION: WARN, _COOLDOWN: 5, **solved}
    for key, value in given.items():
        if key not in settings:
            raise ConfigError(
                f"alarms.{alarm.name} has no setting {key!r}. "
                f"{did_you_mean(str(key), settings)}"
            )
        _check(alarm, str(key), value)
    settings |= given
    return BoundAlarm(
        alarm,
        {key: settings[key] for key in alarm.thresholds},
        settings[_ACTION],
        settings.get(_SOLVED),
        settings[_COOLDOWN],
    )


def _check(alarm: Alarm, key: str, value: Any) -> None:
    where = f"alarms.{alarm.name}.{key}={show(value)}"
    if key == _ACTION:
        if value not in ACTIONS:
            raise ConfigError(f"{where}: {did_you_mean(str(value), alarm.actions)}")
        if value not in alarm.actions:
            raise ConfigError(
                f"{where} would have no effect. Use {' or '.join(alarm.actions)}."
            )
        return
    if key == _SOLVED and value is None:
        return
    if key in _COUNTS and not (is_number(value, int) and value >= 1):
        raise ConfigError(f"{where} must be a whole number of iterations >= 1.")
    if not is_number(value) or value < 0:
        raise ConfigError(f"{where} must be a number >= 0.")
