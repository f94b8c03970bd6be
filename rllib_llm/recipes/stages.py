"""Stages of a recipe as data: the common settings and those of each stage."""

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
    """Return the recipe with its list of stages as a mapping by name.

    Raises:
        ConfigError: A stage is not a mapping, or its name is missing or not unique.
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
                f"stages: stage {number} is {show(stage)}. Each stage must have a "
                "unique name of letters, digits, '_' and '-', e.g. "
                "{name: rl, algo: GRPO}."
            )
        named[name] = {k: v for k, v in stage.items() if k != "name"}
    return {**data, STAGES: named}


def override_stages(
    data: Mapping[str, Any], overrides: Iterable[str]
) -> dict[str, Any]:
    """Return the recipe, stages by name, with dotted overrides applied.

    Raises:
        ConfigError: An override names an unknown stage, or a common setting that every
            stage overrides.
    """
    overrides = list(overrides)
    for override in overrides:
        keys = override.partition("=")[0].strip().split(".")
        if keys[0] != STAGES:
            _check_reaches(data, keys, override)
        elif len(keys) < 3 or keys[1] not in data[STAGES]:
            raise ConfigError(
                f"The override {override!r} must have the form "
                "stages.NAME.section.key=value. "
                f"{did_you_mean(keys[1] if len(keys) > 1 else '', data[STAGES])}"
            )
    return apply_overrides(dict(data), overrides)


def _check_reaches(data: Mapping[str, Any], keys: list[str], override: str) -> None:
    """Reject an override of a common setting that every stage sets itself."""
    if all(_is_set(stage, keys) for stage in data[STAGES].values()):
        paths = ", ".join(f"stages.{name}.{'.'.join(keys)}" for name in data[STAGES])
        raise ConfigError(
            f"The override {override!r} would have no effect: every stage sets its "
            f"own value. Use {paths}."
        )


def _is_set(stage: object, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(stage, Mapping) or key not in stage:
            return False
        stage = stage[key]
    return True


def recipes_of_stages(data: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return each stage as a complete recipe, by the name of the stage.

    Args:
        data: The recipe, stages by name.
        name: The recipe's name.
    """
    common = {k: v for k, v in data.items() if k not in _OF_THE_WHOLE}
    recipes = {}
    for number, (stage, settings) in enumerate(data[STAGES].items()):
        for key in (STAGES, *([_FIRST_ONLY] if number else [])):
            if settings.get(key) is not None:
                raise ConfigError(
                    f"stage {stage!r}: {key} is not allowed here. "
                    + (
                        "Stages cannot be nested; add it to the list of stages."
                        if key == STAGES
                        else "A later stage starts from the weights of the one before; "
                        "set it in the first stage, or outside of the stages."
                    )
                )
        merged = merge(common, settings)
        if number:
            # A common ``sft`` is the first stage's: it would overwrite loaded weights.
            merged.pop(_FIRST_ONLY, None)
        recipes[stage] = {**merged, "name": f"{name}_{stage}"}
    return recipes


def merge(common: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``common`` updated recursively with ``overlay``.

    None removes a common setting; if there is none, None is the value. A component (a
    mapping with a ``name``) is replaced as a whole, since the settings of one component
    are not valid for another.
    """
    merged = copy.deepcopy(dict(common))
    for key, value in overlay.items():
        old = merged.get(key)
        if value is None and old is not None:
            del merged[key]
        elif isinstance(value, dict) and isinstance(old, dict) and "name" not in value:
            merged[key] = merge(old, value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def stages_as_list(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe with stages as a list; inverts :func:`stages_by_name`."""
    listed = [{"name": name, **stage} for name, stage in data[STAGES].items()]
    return {**data, STAGES: listed}
