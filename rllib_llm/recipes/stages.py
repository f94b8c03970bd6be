"""Stages of a recipe as data: what is common, and what each stage changes."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.recipes.overrides import apply_overrides
from rllib_llm.schema import show

STAGES = "stages"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_OF_THE_WHOLE = ("name", "description", STAGES)
_FIRST_ONLY = "sft"


def stages_by_name(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe with its list of stages as a mapping of their names.

    Raises:
        ConfigError: If a stage is no mapping, or its name is missing or not its own.
    """
    given = data[STAGES]
    if not isinstance(given, list) or not given:
        raise ConfigError(
            f"stages: {show(given)} must be a list of mappings, e.g. "
            "[{name: sft, algo: SFT}, {name: rl, algo: GRPO}]."
        )
    named: dict[str, Any] = {}
    for number, stage in enumerate(given, start=1):
        name = stage.get("name") if isinstance(stage, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in named:
            raise ConfigError(
                f"stages: number {number} is {show(stage)}. Each needs a name of its "
                "own, of letters, digits, '_' and '-', e.g. {name: rl, algo: GRPO}."
            )
        named[name] = {k: v for k, v in stage.items() if k != "name"}
    return {**data, STAGES: named}


def override_stages(
    data: Mapping[str, Any], overrides: Iterable[str]
) -> dict[str, Any]:
    """Return the recipe, stages by name, with dotted overrides applied.

    Raises:
        ConfigError: If an override names no stage, or every stage sets its own value.
    """
    overrides = list(overrides)
    for override in overrides:
        keys = override.partition("=")[0].strip().split(".")
        if keys[0] != STAGES:
            _check_reaches(data, keys, override)
        elif len(keys) < 3 or keys[1] not in data[STAGES]:
            raise ConfigError(
                f"The override {override!r} must read stages.NAME.section.key=value. "
                f"{did_you_mean(keys[1] if len(keys) > 1 else '', data[STAGES])}"
            )
    return apply_overrides(dict(data), overrides)


def _check_reaches(data: Mapping[str, Any], keys: list[str], override: str) -> None:
    """Refuse a change of what is common that no stage would see."""
    if all(_is_set(stage, keys) for stage in data[STAGES].values()):
        paths = ", ".join(f"stages.{name}.{'.'.join(keys)}" for name in data[STAGES])
        raise ConfigError(
            f"The override {override!r} would have no effect: every stage sets its "
            f"own. Use {paths}."
        )


def _is_set(stage: Any, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(stage, Mapping) or key not in stage:
            return False
        stage = stage[key]
    return True


def recipes_of_stages(data: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return what each stage is as a recipe of its own, by the stage's name.

    Args:
        data: The recipe, stages by name.
        name: The recipe's name.
    """
    common = {k: v for k, v in data.items() if k not in _OF_THE_WHOLE}
    found = {}
    for number, (stage, own) in enumerate(data[STAGES].items()):
        for key in (STAGES, *([_FIRST_ONLY] if number else [])):
            if own.get(key) is not None:
                raise ConfigError(
                    f"stage {stage!r}: {key} has no place in it. "
                    + (
                        "Stages follow one another; put it into the list."
                        if key == STAGES
                        else "A later stage begins with what the one before learnt; "
                        "put it into the first, or outside of the stages."
                    )
                )
        merged = merge(common, own)
        if number:
            merged.pop(_FIRST_ONLY, None)
        found[stage] = {**merged, "name": f"{name}_{stage}"}
    return found


def merge(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``common`` with ``own`` laid over it, mapping by mapping.

    None takes away what is common; where nothing is, it is a value. A piece (a mapping
    with a ``name``) is replaced as a whole: another's settings would not be its own.
    """
    merged = copy.deepcopy(dict(common))
    for key, value in own.items():
        old = merged.get(key)
        if value is None and old is not None:
            del merged[key]
        elif isinstance(value, dict) and isinstance(old, dict) and "name" not in value:
            merged[key] = merge(old, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def stages_as_list(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe as it stands in YAML; see :func:`stages_by_name`."""
    listed = [{"name": name, **stage} for name, stage in data[STAGES].items()]
    return {**data, STAGES: listed}
