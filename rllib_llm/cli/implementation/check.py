"""``rllib-llm check``: play an environment and report errors."""

from __future__ import annotations

from typing import Any

import typer

from rllib_llm.cli.terminal import printable
from rllib_llm.errors import ConfigError
from rllib_llm.recipes.overrides import apply_overrides


def check(
    env: str,
    options: list[str],
    model: str | None,
    max_context_tokens: int | None,
    *,
    env_processes: bool = False,
) -> bool:
    """Print the report of :func:`rllib_llm.envs.check_env`; return True if it is ok."""
    from rllib_llm.envs import check_env

    report = check_env(
        env,
        apply_overrides({}, options),
        tokenizer=_tokenizer(model),
        max_context_tokens=_context(model, max_context_tokens),
        env_processes=env_processes,
    )
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
    if model == "tiny":
        raise ConfigError(
            "--model tiny cannot be checked: the tokenizer of the tiny model is built "
            "for each environment. Give a checkpoint folder or a hub id."
        )
