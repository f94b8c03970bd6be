"""Loggers of a recipe besides its files: TensorBoard, W&B, MLflow."""

from __future__ import annotations

import importlib.util
import inspect
import os
from typing import TYPE_CHECKING, Any

from rllib_llm.errors import ConfigError, MissingExtraError, did_you_mean
from rllib_llm.schema import show

if TYPE_CHECKING:
    from pathlib import Path

    from rllib_llm.recipes.recipe import Recipe

TENSORBOARD, WANDB, MLFLOW = "tensorboard", "wandb", "mlflow"
LOGGERS = (TENSORBOARD, WANDB, MLFLOW)
_OPTIONAL = (WANDB, MLFLOW)
_SIMPLE = (bool, int, float, str)
# Fields of a recipe that are not hyperparameters.
_NOT_LOGGED = ("name", "description", "expect", "tune", "loggers")


def check_loggers(given: object) -> dict[str, dict[str, Any]]:
    """Return the settings of each logger by name; TensorBoard alone by default.

    Args:
        given: A list of names, or mappings of one name to its settings.

    Raises:
        ConfigError: A logger is unknown, repeated or has an unknown setting.
    """
    if given is None:
        return {TENSORBOARD: {}}
    if not isinstance(given, list):
        raise ConfigError(
            f"loggers: {show(given)} must be a list, e.g. [tensorboard, "
            "{wandb: {project: my_project}}]."
        )
    loggers: dict[str, dict[str, Any]] = {}
    for entry in given:
        name, settings = _entry(entry)
        if name not in LOGGERS:
            raise ConfigError(
                f"loggers: unknown logger {show(name, 60)}. "
                f"{did_you_mean(name[:60], LOGGERS)}"
            )
        if name in loggers:
            raise ConfigError(f"loggers: {name} is listed twice. Remove one of them.")
        _check_settings(name, settings)
        loggers[name] = settings
    return loggers


def _entry(entry: object) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, settings),) = entry.items()
        if settings is None or isinstance(settings, dict):
            return str(name), dict(settings or {})
    raise ConfigError(
        f"loggers: {show(entry)} must be a name, or a name with its settings, e.g. "
        "{wandb: {project: my_project, mode: offline}}."
    )


def _check_settings(name: str, settings: dict[str, Any]) -> None:
    if name == WANDB:
        return  # its callback passes unknown settings on to wandb.init
    valid: list[str] = []
    if name == MLFLOW:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        valid = list(inspect.signature(MLflowLoggerCallback).parameters)
    for key in settings:
        if key not in valid:
            hint = did_you_mean(str(key), valid)
            raise ConfigError(f"loggers: {name} has no setting {key!r}. {hint}")


def require_loggers(loggers: dict[str, dict[str, Any]]) -> None:
    """Check that the packages of the loggers are installed.

    Raises:
        MissingExtraError: A package is missing; the message has the extra to install.
    """
    for name in loggers:
        if name in _OPTIONAL and importlib.util.find_spec(name) is None:
            raise MissingExtraError.for_extra(name, name)


def build_loggers(recipe: Recipe, run: Path) -> list[Any]:
    """Return Ray's callbacks of the optional loggers.

    Args:
        recipe: The recipe of the run.
        run: The run folder.
    """
    require_loggers(recipe.loggers)
    built = []
    if WANDB in recipe.loggers:
        built.append(_wandb(recipe.name, recipe.loggers[WANDB], run))
    if MLFLOW in recipe.loggers:
        from rllib_llm.callbacks.mlflow_logging import SettingsMLflow

        defaults = {"experiment_name": recipe.name}
        built.append(
            SettingsMLflow(
                hyperparameters(recipe.resolved), **defaults | recipe.loggers[MLFLOW]
            )
        )
    return built


def _wandb(name: str, settings: dict[str, Any], run: Path) -> Any:
    from ray.air.integrations.wandb import WandbLoggerCallback

    mode = settings.get("mode")
    if mode in ("offline", "disabled"):
        # Ray demands an API key unless the environment says that none is needed.
        os.environ.setdefault("WANDB_MODE", mode)
    defaults = {
        "project": name,
        "resume": "allow",  # a resumed trial continues its W&B run
        # Not Ray's default: Tune copies that folder before W&B has written all of it.
        "dir": str(run),
    }
    return WandbLoggerCallback(**defaults | settings)


def hyperparameters(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe that are scalars, by their dotted names."""
    settings = {k: v for k, v in resolved.items() if k not in _NOT_LOGGED}
    return {k: v for k, v in _flat(settings) if isinstance(v, _SIMPLE)}


def _flat(data: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            items += _flat(value, f"{prefix}{key}.")
        else:
            items.append((f"{prefix}{key}", value))
    return items
