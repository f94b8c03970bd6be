"""Advantages from the scores of a scorer that is trained beside the policy."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_unit_interval


@component(
    "advantage_estimator",
    "scorer",
    paper="iStar, arXiv:2509.19199; with a discount PRIME, arXiv:2502.01456",
)
def scorer(
    table: TurnTable,
    *,
    baseline: str = "leave_one_out",
    scale: str = "none",
    discount: float = 0.0,
) -> np.ndarray:
    """Compare the score of each turn with those of all turns of its task.

    It needs the section ``scorer``, which trains the model, and is usually added to
    ``group``, which compares the returns.

    Args:
        table: Trajectories with scores.
        baseline: "leave_one_out": the mean over the other turns of the task's
            rollouts; "mean": over all of them; "none".
        scale: "none", "group" or "batch": the standard deviation of these scores.
        discount: Discount of later turns' advantages, which are added, in [0, 1]; 0:
            each turn its own (iStar).

    Returns:
        Advantages. [M]
    """
    check_unit_interval(discount=discount)
    groups = table.task[table.owner]
    relative = group_advantages(table.scores, groups, baseline=baseline, scale=scale)
    return table.to_go(discount, relative)


@component(
    "advantage_estimator",
    "turn_critic",
    paper="ArCHer, arXiv:2402.19446; with lambda_ DigiRL, arXiv:2406.11896",
)
def turn_critic(table: TurnTable, *, lambda_: float | None = None) -> np.ndarray:
    """Take the advantage of each turn from a critic of turns, without a group.

    It needs the section ``scorer`` with ``loss: td``, ``monte_carlo`` or ``vtrace``.

    Args:
        table: Trajectories with the critic's advantages.
        lambda_: None: the critic's alone. Otherwise in [0, 1]: mixed with the return
            from the turn on, whose weight is ``lambda_ ** turns until the last one``.

    Returns:
        Advantages. [M]
    """
    if lambda_ is None:
        return table.scores
    check_unit_interval(lambda_=lambda_)
    left = table.num_turns[table.owner] - 1 - table.turn
    weight = lambda_**left
    # A turn has no part in earlier rewards; with one at the end this is the outcome.
    return weight * table.to_go() + (1 - weight) * table.scores
