"""Forks where Monte-Carlo tree search would sample next."""

from __future__ import annotations

import functools

from rllib_llm.components.registry import component
from rllib_llm.forks.point import ForkPoint
from rllib_llm.forks.search_tree import (
    BACKUPS,
    SCORES,
    TreePlace,
    TreeTurn,
    select,
)
from rllib_llm.losses._checks import check_choice, check_unit_interval


@component("fork", "mcts", paper="Agent Q, arXiv:2408.07199 (UCT over turns)")
class Mcts:
    """Begin each episode where tree search over the group's earlier episodes grows.

    The first episode of a group begins at the prompt. Each later one follows the turn
    of the highest score from place to place, until one has fewer than ``width`` sampled
    turns, and begins there. Episodes of a group are therefore sampled one after
    another. With several agents a turn is a step of the environment, and its reward
    the sum over all agents.

    Args:
        width: Turns to sample at a place; equal ones become one turn of the tree.
        rule: Score of a turn: "uct" ``Q + c sqrt(ln N(s) / (1 + N(s, a)))`` or "puct"
            ``Q + c P(a) sqrt(N(s)) / (1 + N(s, a))``, P the softmax of the turns' mean
            log-probabilities.
        exploration: c, in units of the return.
        gamma: Discount per turn of the returns.
        backup: Q of a turn: the "mean" of the returns from it on, or their "max".
    """

    roots = 1

    def __init__(
        self,
        *,
        width: int = 4,
        rule: str = "uct",
        exploration: float = 1.0,
        gamma: float = 1.0,
        backup: str = "mean",
    ):
        check_choice("rule", rule, tuple(SCORES))
        check_choice("backup", backup, BACKUPS)
        check_unit_interval(gamma=gamma)
        if width < 1 or exploration < 0:
            raise ValueError(
                f"width={width} must be >= 1, exploration={exploration} >= 0."
            )
        self.width, self.gamma, self.backup = width, gamma, backup
        self._score = functools.partial(SCORES[rule], exploration=exploration)

    def __call__(self, point: ForkPoint) -> int:
        """Return 0: places are chosen among finished episodes."""
        return 0

    def path(self, root: TreePlace) -> list[TreeTurn]:
        """Return the turns from the prompt to where the tree grows."""
        return select(root, self._score, self.width)
