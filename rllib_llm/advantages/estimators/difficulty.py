"""Advantages weighted by the difficulty of their task."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.advantages.estimators.outcome import outcomes
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice, check_positive, check_unit_interval

FORMULAS = {
    "hard": lambda p: 1.0 - p,
    "easy": lambda p: p,
    "uncertain": lambda p: 4.0 * p * (1.0 - p),
}


SCOPES = ("group", "environment", "info")


@component("advantage_transform", "weight", paper="F-GRPO, arXiv:2602.06717")
def weigh_by_difficulty(
    table: TurnTable,
    advantages: np.ndarray,
    *,
    formula: str = "hard",
    power: float = 1.0,
    strength: float = 1.0,
    of: str = "success",
    by: str = "group",
    key: str = "",
) -> np.ndarray:
    """Multiply by ``1 - strength + strength * f(p)^power``, p a rate of success.

    "hard" with a power is F-GRPO's focal weight. VITAL's DGRPO (arXiv:2508.04416)
    weighs twice: by the group and by the kind of its task. "easy" and "uncertain" are
    this package's.

    Args:
        table: Whole groups.
        advantages: Advantage of each turn. [M]
        formula: f: "hard" ``1 - p``, "easy" ``p``, "uncertain" ``4 p (1 - p)``.
        power: Exponent of f, > 0.
        strength: 0 changes nothing; 1 multiplies by f alone.
        of: Quantity whose mean is p: "success", or "return" where it is in [0, 1].
        by: p is the mean over a "group", or over all groups of a kind of task in the
            iteration, which count equally: the task's "environment" in a mixture, or
            the last value of ``key`` in its "info".
        key: Key of infos whose values name kinds, for ``by="info"``.

    Returns:
        Advantages. [M]

    Raises:
        ValueError: If a setting or a mean is out of range, or the rollouts of a task
            are of different kinds.
        MissingInfo: If an episode has no info with ``key``.
    """
    check_choice("formula", formula, FORMULAS)
    check_positive("power", power, "Use e.g. 1.0.")
    check_unit_interval(strength=strength)
    check_choice("by", by, SCOPES)
    if (by == "info") != bool(key):
        raise ValueError(
            f"by={by!r} with key={key!r}: key names the info of by='info' and nothing "
            "else. Set both or neither."
        )
    values = outcomes(table, of)
    if not len(values):
        return advantages
    groups = combined_keys(table.task)
    rate = key_means(values, groups)  # of each group [G]
    if rate.max() > 1:
        raise ValueError(
            f"A task's mean return is {rate.max():g}; as a success rate it must be at "
            "most 1. Use of='success'."
        )
    if by != "group":
        kinds = _kinds(table, groups, key)
        rate = key_means(rate, kinds)[kinds]
    # A linear mix with 1: strength 0 leaves the advantages as they are.
    weight = 1.0 - strength + strength * FORMULAS[formula](rate) ** power
    return advantages * weight[groups][table.owner]


def _kinds(table: TurnTable, groups: np.ndarray, key: str) -> np.ndarray:
    """Return the kind of each group's task: its environment, or that of its info. [G]

    Args:
        table: Whole groups.
        groups: Group of each trajectory, without gaps. [N]
        key: Key of infos; "" for the environment in a mixture.
    """
    names: dict[int, str] = {}
    for group, one in zip(groups.tolist(), table.trajectories, strict=True):
        # An environment alone, without a mixture, is one kind.
        name = str(one.last_info(key)) if key else one.task.environment or ""
        if names.setdefault(group, name) != name:
            raise ValueError(
                f"Rollouts of a task have infos {key!r} of {names[group]!r} and "
                f"{name!r}. The kind belongs to the task: return the same in all of "
                "its rollouts."
            )
    return combined_keys([names[group] for group in range(len(names))])
