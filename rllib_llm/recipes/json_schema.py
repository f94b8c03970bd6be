"""JSON Schema of recipes, with which editors complete and check them.

It is made from the declarations that also validate recipes.
"""

from __future__ import annotations

import json
from typing import Any

from rllib_llm.algorithms.config.schema import SECTIONS, Setting, settings_of
from rllib_llm.algorithms.registry import ALGORITHMS
from rllib_llm.components.registry import Spec, Specs
from rllib_llm.envs.mixture_members import COMPONENTS, MIXTURE
from rllib_llm.envs.registry import TEXT_ENVS
from rllib_llm.recipes.recipe import FIELDS, VERSIONS
from rllib_llm.recipes.search_spaces import SPACES
from rllib_llm.recipes.stages import STAGES
from rllib_llm.recipes.tune_settings import TuneSettings
from rllib_llm.schema import PositiveFloat
from rllib_llm.schema.json_schema import SEARCH_SPACE, json_schema_of

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_COMPONENTS: dict[str, Any] = {
    **dict.fromkeys(COMPONENTS, Specs),
    "curriculum": Spec | None,
    "prompt_text": Spec | None,
}
_NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe."""
    by_algorithm = {name: _sections(name) for name in ALGORITHMS}
    common = {
        section: schema
        for section, schema in next(iter(by_algorithm.values())).items()
        if all(each.get(section) == schema for each in by_algorithm.values())
    }
    fields = {**_fields(), **common}
    special = [
        {
            "if": {"properties": {"algo": {"const": name}}, "required": ["algo"]},
            # False refuses a section that the algorithm lacks.
            "then": {
                "properties": {
                    s: schemas.get(s, False) for s in SECTIONS if s not in common
                }
            },
        }
        for name, schemas in by_algorithm.items()
    ]
    # Sections that some algorithms lack are named, so that they are not unknown.
    fields |= {section: {} for section in SECTIONS if section not in common}
    return {
        "$schema": _DIALECT,
        "title": "Recipe of rllib_llm",
        "type": "object",
        "properties": {
            **fields,
            STAGES: {"type": "array", "items": {"type": "object"}},
        },
        "additionalProperties": False,
        "anyOf": [{"required": ["algo", "env"]}, {"required": [STAGES]}],
        "allOf": special,
        "$defs": {"search_space": _search_space()},
    }


def recipe_schema_text() -> str:
    """Return the schema as JSON."""
    return json.dumps(recipe_schema(), indent=1, default=str) + "\n"


def _fields() -> dict[str, Any]:
    text = {"type": "string"}
    fields: dict[str, Any] = {
        "name": text,
        "description": text,
        "algo": {"enum": list(ALGORITHMS), "description": "The algorithm."},
        "env": {
            "anyOf": [{"enum": list(TEXT_ENVS.names())}, text, _mixture()],
            "description": "A registered name, a Gymnasium id, 'module:Name', or a "
            "mixture.",
        },
        "env_config": {"type": "object", "description": "Options of the environment."},
        "seed": json_schema_of(int | None),
        "stop": {**_NUMBERS, "description": "Bounds of metrics that end the run."},
        "expect": {"type": "object", "description": "Checked by --as-test."},
        "tune": _without_space(json_schema_of(TuneSettings)),
        "loggers": {"type": "array"},
        VERSIONS: {"type": "object"},
    }
    missing = {*FIELDS} - {*fields, *SECTIONS, STAGES}
    assert not missing, missing
    return fields


def _mixture() -> dict[str, Any]:
    text = {"type": "string"}
    environment = {
        "type": "object",
        "properties": {
            "env": {"anyOf": [{"enum": list(TEXT_ENVS.names())}, text]},
            "name": text,
            "weight": json_schema_of(PositiveFloat),
            "env_config": {"type": "object"},
            **{name: json_schema_of(kind) for name, kind in _COMPONENTS.items()},
        },
        "required": ["env"],
        "additionalProperties": False,
    }
    environments = {"type": "array", "items": environment, "minItems": 2}
    return {
        "type": "object",
        "properties": {MIXTURE: environments},
        "required": [MIXTURE],
        "additionalProperties": False,
    }


def _sections(algorithm: str) -> dict[str, Any]:
    """Return the schema of every section of an algorithm."""
    sections: dict[str, Any] = {}
    config_class = ALGORITHMS.get(algorithm).config_class()
    # mypy does not see that classes are hashable.
    for setting in settings_of(config_class).values():  # type: ignore[arg-type]
        section = sections.setdefault(
            setting.section,
            {"type": "object", "properties": {}, "additionalProperties": False},
        )
        section["properties"][setting.key] = _setting(setting)
    return sections


def _setting(setting: Setting) -> dict[str, Any]:
    default = "" if setting.default is None else f" Default: {setting.default}."
    # RLlib's objects print as their address, which differs between processes.
    if " object at 0x" in default:
        default = ""
    text = f"{setting.doc.replace('``', '')}{default}".strip()
    schema = json_schema_of(setting.kind)
    return {**schema, "description": text} if text else schema


def _without_space(schema: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in schema["anyOf"] if each != SEARCH_SPACE)


def _search_space() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "array"} for name in SPACES},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
