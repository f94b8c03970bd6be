"""Validation of the admissible actions in ``info``, for ``head="score"``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_llm.errors import EnvContractError

ADMISSIBLE = "admissible_actions"
"""Key of ``info`` that lists all actions of the next turn."""


def admissible_actions(info: Mapping[str, Any], where: str) -> list[str]:
    """Return the admissible actions in ``info``.

    Args:
        info: Info of the last reset or step.
        where: Environment, agent and turn, for the message.

    Raises:
        EnvContractError: If they are not a list of distinct, non-blank strings.
    """
    actions = info.get(ADMISSIBLE)
    if not actions:
        raise EnvContractError(
            f"{where} returned info[{ADMISSIBLE!r}] = {actions!r}, but generation("
            "head='score') chooses among the actions listed there. List at least one "
            "after every reset and step (TextEnv.admissible_actions returns them; see "
            "docs/extending.md), or use head='generate'."
        )
    for action in actions:
        if not isinstance(action, str) or not action.strip():
            raise EnvContractError(
                f"{where} lists {action!r} in info[{ADMISSIBLE!r}]; each action must "
                "be a non-blank string."
            )
    if len(set(actions)) < len(actions):
        twice = next(a for i, a in enumerate(actions) if a in actions[:i])
        raise EnvContractError(
            f"{where} lists {twice!r} twice in info[{ADMISSIBLE!r}], which would "
            "double its probability. List every action once."
        )
    return list(actions)
