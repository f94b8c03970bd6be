"""Checks of the keywords of fluent methods, RLlib's included, at each call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.rllib_kinds import PASSED_BACK, RENAMED, WITHOUT_EFFECT
from rllib_llm.algorithms.config.schema import (
    SECTIONS,
    Setting,
    is_being_listed,
    section_keys,
    settings_by_attribute,
    settings_of,
)
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.schema import find_problem, refuse, show

_MARK = "checks_settings"


def check_calls(config_class: type[Any]) -> None:
    """Wrap every fluent method of a class so that it checks its keywords.

    Args: config_class: The class; inherited methods are wrapped in it, and wrapped ones
        are left as they are.
    """
    for section in SECTIONS:
        method = getattr(config_class, section, None)
        if method is not None and not hasattr(method, _MARK):
            setattr(config_class, section, _checked(section, method))


def _checked(section: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        if not is_being_listed(type(self)):
            check_keywords(self, section, given)
        return method(self, *args, **given)

    setattr(call, _MARK, True)
    return call


def check_keywords(config: Any, section: str, given: Mapping[str, Any]) -> None:
    """Check names and values of one section's settings.

    Raises:
        ConfigError: With the setting, the value, the rule, and a remedy.
    """
    settings = settings_of(type(config))
    for key, value in given.items():
        setting = settings.get(f"{section}.{key}")
        if value is NotProvided:
            continue
        if setting is not None:
            check_value(setting, value)
        elif key in WITHOUT_EFFECT.get(section, {}):
            _refuse_without_effect(config, section, key, value)
        else:
            _refuse_key(type(config), section, key)


def check_value(setting: Setting, value: Any, where: str | None = None) -> None:
    """Check the value of a setting.

    Args:
        setting: The setting.
        value: Its value, or a search space of Tune.
        where: Its name in the message; None: its path.

    Raises:
        ConfigError: With the value, the rule, and a remedy.
    """
    where = where or setting.path
    problem = find_problem(where, value, setting.kind)
    is_whole = problem is not None and problem.where == where
    refuse(problem, f"The default is {show(setting.default, 80)}." if is_whole else "")


def check_attributes(config: Any) -> None:
    """Check every setting of a config by the attribute that holds it.

    Attributes may be set without a fluent method, as Tune does.

    Raises:
        ConfigError: With the setting, the value, the rule, and a remedy.
    """
    settings = settings_by_attribute(type(config))
    for attribute, setting in settings.items():
        check_value(setting, getattr(config, attribute))
    overrides = config.evaluation_config
    if isinstance(overrides, Mapping):
        for attribute, value in overrides.items():
            _check_override(config, settings, attribute, value)


def _check_override(
    config: Any, settings: Mapping[str, Setting], attribute: Any, value: Any
) -> None:
    """Check one entry of ``evaluation_config``, whose keys are attributes."""
    where = "evaluation.evaluation_config"
    if not isinstance(attribute, str) or not hasattr(config, attribute):
        raise ConfigError(
            f"{where} has no setting {show(attribute, 60)}. "
            f"{did_you_mean(str(attribute)[:60], settings)}"
        )
    if attribute in settings:
        check_value(settings[attribute], value, f"{where}.{attribute}")


def _refuse_without_effect(config: Any, section: str, key: str, value: Any) -> None:
    """Refuse a setting, unless RLlib passes back the value its config has already."""
    present = getattr(config, key, None)
    is_same = value is present or value == present
    if not (is_same and key in PASSED_BACK):
        raise ConfigError(
            f"{section}.{key} has no effect on language agents: "
            f"{WITHOUT_EFFECT[section][key]}."
        )


def _refuse_key(config_class: type[Any], section: str, key: str) -> None:
    path, name = f"{section}.{key[:60]}", RENAMED.get(key, key)
    for setting in settings_of(config_class).values():
        if setting.key == name:
            raise ConfigError(f"Unknown setting {path}. Use {setting.path}.")
    keys = section_keys(config_class, section)
    hint = did_you_mean(key[:60], keys)
    near = f"{hint} " if hint.startswith("Did you mean") else ""
    raise ConfigError(
        f"Unknown setting {path}. {near}Valid keys of {section}: {', '.join(keys)}."
    )
