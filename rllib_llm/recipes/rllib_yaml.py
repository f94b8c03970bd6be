"""Translation of RLlib's flat YAML, ``name: {env, run, stop, config: {flat keys}}``."""

from __future__ import annotations

from typing import Any

from rllib_llm.algorithms.config.rllib_kinds import RENAMED
from rllib_llm.algorithms.config.sections import SECTIONS, section_keys, suggestion
from rllib_llm.algorithms.registry import ALGORITHMS
from rllib_llm.errors import ConfigError
from rllib_llm.schema import require, show

_TOP = ("env", "run", "stop", "config", "num_samples", "checkpoint_config", "expect")
_CHECKPOINT = {
    "checkpoint_frequency": "checkpoint_frequency",
    "num_to_keep": "num_to_keep",
    "checkpoint_at_end": None,  # always done
}
# Prefixes of config attributes whose section has the name without the prefix.
_PREFIXES = {"lm_": "language_model", "sft_": "sft"}
# ``training`` and what follows first: a flat ``lr`` means ``training.lr``.
_FIRST = SECTIONS.index("training")
_SEARCH_ORDER = (*SECTIONS[_FIRST:], *SECTIONS[:_FIRST])


def is_rllib_yaml(data: dict[str, Any]) -> bool:
    """Return True if ``data`` has a single entry, which has the key ``run``."""
    if len(data) != 1:
        return False
    (body,) = data.values()
    return isinstance(body, dict) and "run" in body


def from_rllib_yaml(data: dict[str, Any]) -> dict[str, Any]:
    """Return the same experiment as a recipe with sections.

    Raises:
        ConfigError: A key does not have a counterpart.
    """
    ((name, body),) = data.items()
    require("the recipe", data, dict[str, dict[str, Any]])
    for key in body:
        if key not in _TOP:
            raise ConfigError(
                f"{name}: unknown field {key!r}. {suggestion(key[:60], _TOP)}"
                f"Fields of RLlib's flat YAML: {', '.join(_TOP)}."
            )
    recipe: dict[str, Any] = {"name": name, "algo": body["run"]}
    for field in ("config", "checkpoint_config"):
        require(f"{name}.{field}", body.get(field), dict[str, Any] | None)
    flat = dict(body.get("config") or {})
    env = body.get("env", flat.pop("env", None))
    if env is not None:
        recipe["env"] = env
    for key in ("stop", "expect"):
        if body.get(key) is not None:
            recipe[key] = body[key]
    tune = _tune_settings(name, body)
    if tune:
        recipe["tune"] = tune
    config_class = ALGORITHMS.get(str(body["run"])).config_class()
    for key, value in flat.items():
        _place(recipe, config_class, str(key), value)
    return recipe


def _tune_settings(name: str, body: dict[str, Any]) -> dict[str, Any]:
    settings = {}
    if "num_samples" in body:
        settings["num_samples"] = body["num_samples"]
    for key, value in (body.get("checkpoint_config") or {}).items():
        if key not in _CHECKPOINT:
            raise ConfigError(
                f"{name}: unknown key {key!r} of checkpoint_config. Valid: "
                f"{', '.join(_CHECKPOINT)}."
            )
        ours = _CHECKPOINT[key]
        if ours is not None:
            settings[ours] = value
    return settings


def _place(
    recipe: dict[str, Any], config_class: type[Any], key: str, value: object
) -> None:
    """Set one flat key in its section of ``recipe``."""
    if isinstance(value, dict) and set(value) == {"grid_search"}:
        value = {"grid": value["grid_search"]}
    if key in ("env_config", "seed"):
        recipe[key] = value
    elif key == "framework" and value == "torch":
        return
    elif key == "model" and not isinstance(value, str):
        raise ConfigError(
            f"config.model={show(value)} is a network of RLlib's old API stack, which "
            "is not supported. Name a language model instead, e.g. model: tiny."
        )
    else:
        section, keyword = _locate(config_class, RENAMED.get(key, key))
        recipe.setdefault(section, {})[keyword] = value


def _locate(config_class: type[Any], key: str) -> tuple[str, str]:
    by_section = {s: section_keys(config_class, s) for s in _SEARCH_ORDER}
    for prefix, section in _PREFIXES.items():
        if key.startswith(prefix) and key[len(prefix) :] in by_section[section]:
            return section, key[len(prefix) :]
    for section, keys in by_section.items():
        if key in keys:
            return section, key
    every = {k for keys in by_section.values() for k in keys}
    raise ConfigError(
        f"{config_class.__name__} has no setting {key!r} (new API stack). "
        f"{suggestion(key, {*every, *RENAMED})}"
        "See 'rllib-llm list algorithms' and docs for the settings of each section."
    )
