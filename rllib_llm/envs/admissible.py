"""The actions that an environment admits, for policies that choose among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_llm.errors import EnvContractError

ADMISSIBLE = "admissible_actions"
"""Key of ``info`` under which all actions of the coming turn are listed."""


def admissible_actions(info: Mapping[str, Any], where: str) -> list[str]:
    """Return the actions that ``info`` lists.

    Args:
        info: Of the last reset or step.
        where: Who must act when, for the message.

    Raises:
        EnvContractError: If there is no list of different, non-blank strings.
    """
    found = info.get(ADMISSIBLE)
    if not found:
        raise EnvContractError(
            f"{where} gave info[{ADMISSIBLE!r}] = {found!r}, but generation("
            "head='score') chooses among the actions listed there. List at least one "
            "after every reset and step (TextEnv.admissible_actions returns them; see "
            "docs/extending.md), or use head='generate'."
        )
    for action in found:
        if not isinstance(action, str) or not action.strip():
            raise EnvContractError(
                f"{where} lists {action!r} in info[{ADMISSIBLE!r}]; each action must "
                "be a non-blank string."
            )
    if len(set(found)) < len(found):
        twice = next(a for i, a in enumerate(found) if a in found[:i])
        raise EnvContractError(
            f"{where} lists {twice!r} twice in info[{ADMISSIBLE!r}], which would "
            "double its chance. List every action once."
        )
    return list(found)
