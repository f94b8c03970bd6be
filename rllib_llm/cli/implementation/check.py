"""``rllib-llm check``: play an environment and report errors."""

from __future__ import annotations

import os
from typing import Any

import typer

from rllib_llm.cli.env_argument import is_recipe, parse_env
from rllib_llm.cli.terminal import printable
from rllib_llm.errors import ConfigError
from rllib_llm.modules.tiny import BUILT_MODELS
from rllib_llm.recipes.overrides import apply_overrides


def check(
    env: str,
    options: list[str],
    model: str | None,
    max_context_tokens: int | None,
    *,
    env_processes: bool = False,
    forks: bool = False,
) -> bool:
    """Print the report of :func:`rllib_llm.envs.check_env`; return True if it is ok."""
    from rllib_llm.envs import check_env
    from rllib_llm.envs.dataset.repositories import is_repository
    from rllib_llm.envs.dataset.row_files import is_data_file
    from rllib_llm.offline.row_file import check_stored_rows

    env_config = apply_overrides({}, options)
    if is_recipe(env):
        if options:
            raise ConfigError(
                f"{env} is a recipe, which has its environment's options already. "
                f"Remove {' '.join(options)}, or change the recipe."
            )
        env, env_config = parse_env(env)
    # A folder is written with a slash, since names of environments may be its name.
    is_whole = (os.sep in env or is_data_file(env)) and is_repository(env)
    # Stored conversations have no environment, so only dataset-v0 can be forked.
    if is_data_file(env) and not is_whole and not env_config and not forks:
        stored = check_stored_rows(env)
        if stored is not None:
            typer.echo(printable(str(stored)))
            return stored.ok
    if is_data_file(env) or is_whole:
        env, env_config = "dataset-v0", {"path": env, **env_config}
    if env == "dataset-v0" and not _has_good_rows(env_config):
        return False
    report = check_env(
        env,
        env_config,
        tokenizer=_tokenizer(model),
        max_context_tokens=_context(model, max_context_tokens),
        env_processes=env_processes,
        forks=forks,
    )
    typer.echo(printable(str(report)))
    return report.ok


def _has_good_rows(env_config: dict[str, Any]) -> bool:
    """Print the problems of a data file's rows; return whether there are none."""
    from rllib_llm.envs.dataset import DatasetEnv
    from rllib_llm.envs.dataset.check_rows import check_rows

    report = check_rows(DatasetEnv(env_config).spec())
    typer.echo(printable(str(report)))
    return report.ok


def _tokenizer(model: str | None) -> Any:
    if model is None:
        return None
    _reject_tiny(model)
    from rllib_llm.modules.loading import load_tokenizer
    from rllib_llm.offline.prepare_model import checkpoint_folder

    return load_tokenizer(checkpoint_folder(model))


def _context(model: str | None, given: int | None) -> int | None:
    if model is None or given is not None:
        return given
    from rllib_llm.modules.context_length import model_context_length

    return model_context_length(model)


def _reject_tiny(model: str) -> None:
    if model in BUILT_MODELS:
        raise ConfigError(
            f"--model {model} cannot be checked: the tokenizer of the tiny model is "
            "built for each environment. Give a checkpoint folder or a hub id."
        )
