"""Admissible actions and the expert's in ``info``, for ``head="score"``: checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.errors import EnvContractError

ADMISSIBLE = "admissible_actions"
"""Key of ``info`` that lists all actions of the next turn."""

EXPERT_PROBS = "expert_probs"
"""Key of ``info`` with the expert's probability of each of these actions."""


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


def expert_probs(
    info: Mapping[str, Any], actions: Sequence[str], where: str
) -> np.ndarray | None:
    """Return the expert's probabilities in ``info``, None without any. float32 [K]

    Args:
        info: Info of the last reset or step.
        actions: The admissible actions in it. [K]
        where: Environment, agent and turn, for the message.

    Raises:
        EnvContractError: If they are not a distribution over the actions.
    """
    given = info.get(EXPERT_PROBS)
    if given is None:
        return None
    probs = np.asarray(given, np.float64)
    is_distribution = (
        probs.shape == (len(actions),)
        and bool((probs >= 0).all())
        and abs(probs.sum() - 1.0) < 1e-4
    )
    if not is_distribution:
        raise EnvContractError(
            f"{where} returned info[{EXPERT_PROBS!r}] = {given!r}. It must hold one "
            f"probability for each of the {len(actions)} admissible actions, in their "
            "order, with the sum 1."
        )
    return probs.astype(np.float32)
