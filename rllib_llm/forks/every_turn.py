"""Forks at fixed turns: trees of a given shape."""

from __future__ import annotations

from collections.abc import Sequence

from rllib_llm.components.registry import component
from rllib_llm.forks.point import ForkPoint, check_rule


@component("fork", "every_turn", paper="TreePO, arXiv:2508.17445 (fixed segments)")
class EveryTurn:
    """Fork before every turn of an interval, while the budget lasts.

    With one root, ``branches`` of 1 and a group of ``2 ** n`` the episodes form a
    binary tree that is ``n`` turns deep.

    Args:
        roots: Episodes of a group that begin at the prompt.
        branches: Episodes forked at a place.
        first: Number of the first turn before which episodes are forked, >= 0; 0 is
            the prompt.
        last: Number of the last one; None: no limit.
        agents: AgentIDs; episodes are forked before turns of these alone. None: of all.
    """

    def __init__(
        self,
        *,
        roots: int = 1,
        branches: int = 1,
        first: int = 0,
        last: int | None = None,
        agents: Sequence[str] | None = None,
    ):
        check_rule(roots=roots, branches=branches)
        if first < 0 or (last is not None and last < first):
            raise ValueError(f"first={first}, last={last}: need 0 <= first <= last.")
        self.roots, self.branches, self.first, self.last = roots, branches, first, last
        self.agents = None if agents is None else frozenset(agents)

    def __call__(self, point: ForkPoint) -> int:
        """Return the number of episodes to fork."""
        if self.agents is not None and self.agents.isdisjoint(point.agents):
            return 0
        is_late = self.last is not None and point.turn > self.last
        return 0 if point.turn < self.first or is_late else self.branches
