"""Checks of the keywords of fluent methods, RLlib's included, at each call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.method_help import describe_method
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

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

_MARK = "checks_settings"


def check_calls(config_class: type[Any]) -> None:
    """Wrap every fluent method of a class so that it checks its keywords.

    Args:
        config_class: The class; inherited methods are wrapped in it, and wrapped ones
            do not change.
    """
    for section in SECTIONS:
        method = getattr(config_class, section, None)
        if method is not None and not hasattr(method, _MARK):
            checked = _checked(section, method)
            describe_method(checked, config_class, section)
            setattr(config_class, section, checked)


def _checked(section: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **given: Any) -> Any:
        # The schema is read by calling the methods with markers, which no check would
        # accept.
        if not is_being_listed(type(self)):
            check_keywords(self, section, given)
        return method(self, *args, **given)

    # Subclasses inherit the wrapped method, which must not be wrapped again.
    setattr(call, _MARK, True)
    return call


def check_keywords(config: LLMConfig, section: str, given: Mapping[str, Any]) -> None:
    """Check names and values of one section's settings.

    Raises:
        ConfigError: With the setting, the value, the rule, and a remedy.
    """
    # mypy does not see that classes are hashable.
    settings = settings_of(type(config))  # type: ignore[arg-type]
    for key, value in given.items():
        setting = settings.get(f"{section}.{key}")
        # Fluent methods of subclasses pass all keywords on.
        if value is NotProvided:
            continue
        if setting is not None:
            check_value(setting, value)
        elif key in WITHOUT_EFFECT.get(section, {}):
            _refuse_without_effect(config, section, key, value)
        else:
            _refuse_key(type(config), section, key)


def check_value(setting: Setting, value: object, where: str | None = None) -> None:
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


def check_attributes(config: LLMConfig) -> None:
    """Check every setting of a config by the attribute that holds it.

    Attributes may be set without a fluent method, as Tune does.

    Raises:
        ConfigError: With the setting, the value, the rule, and a remedy.
    """
    settings = settings_by_attribute(type(config))  # type: ignore[arg-type]  # as above
    for attribute, setting in settings.items():
        check_value(setting, getattr(config, attribute))
    _refuse_attributes_without_effect(config, {s.key for s in settings.values()})
    overrides = config.evaluation_config
    if isinstance(overrides, Mapping):
        for attribute, value in overrides.items():
            _check_override(config, settings, attribute, value)


def _check_override(
    config: LLMConfig, settings: Mapping[str, Setting], attribute: object, value: object
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
        return
    moved = {setting.key for setting in settings.values()}
    for names in WITHOUT_EFFECT.values():
        if attribute in names and attribute not in moved:
            _refuse_as_without_effect(f"{where}.{attribute}", names[attribute])


def _refuse_attributes_without_effect(
    config: LLMConfig, moved: Collection[str]
) -> None:
    """Refuse changed attributes that nothing reads.

    Args:
        config: The config; RLlib changes some of its attributes for evaluation.
        moved: Keys of settings, which have an effect in another section.
    """
    # RLlib sets some of these attributes itself for evaluation.
    if config.in_evaluation:
        return
    default = _default(type(config))  # type: ignore[arg-type]  # as above
    for section, names in WITHOUT_EFFECT.items():
        for name, why in names.items():
            if name in moved or name in _DERIVED or not hasattr(default, name):
                continue
            if getattr(config, name) != getattr(default, name):
                _refuse_as_without_effect(f"{section}.{name}", why)


# Settings without effect that a validated config has changed for RLlib's checks.
_DERIVED = ("train_batch_size_per_learner",)


@functools.cache
def _default(config_class: type[Any]) -> Any:
    return config_class()


def _refuse_without_effect(
    config: LLMConfig, section: str, key: str, value: object
) -> None:
    """Refuse a setting, unless RLlib passes back the value its config has already."""
    present = getattr(config, key, None)
    # AlgorithmConfig.update_from_dict() passes all attributes back.
    is_same = value is present or value == present
    if not (is_same and key in PASSED_BACK):
        _refuse_as_without_effect(f"{section}.{key}", WITHOUT_EFFECT[section][key])


def _refuse_as_without_effect(path: str, why: str) -> None:
    raise ConfigError(f"{path} has no effect on language agents: {why}.")


def _refuse_key(config_class: type[Any], section: str, key: str) -> None:
    path, name = f"{section}.{key[:60]}", RENAMED.get(key, key)
    settings = settings_of(config_class)  # type: ignore[arg-type]  # as above
    for setting in settings.values():
        if setting.key == name:
            raise ConfigError(f"Unknown setting {path}. Use {setting.path}.")
    keys = section_keys(config_class, section)
    hint = did_you_mean(key[:60], keys)
    near = f"{hint} " if hint.startswith("Did you mean") else ""
    raise ConfigError(
        f"Unknown setting {path}. {near}Valid keys of {section}: {', '.join(keys)}."
    )
