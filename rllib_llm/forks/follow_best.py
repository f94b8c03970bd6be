"""Forks along the best of the turns that were sampled at each place."""

from __future__ import annotations

from rllib_llm.components.registry import component
from rllib_llm.forks.point import ForkPoint


@component("fork", "follow_best", paper="AT-GRPO, arXiv:2510.11062 (greedy branching)")
class FollowBest:
    """Sample several turns at a place, and go on from the best of them.

    The first ``width`` episodes of a group begin at the prompt. When all have ended,
    ``width - 1`` others begin before the second turn of the one with the highest
    return, whose own turn there is the last one of ``width``; then before the third
    turn of the best of these, and so on. After the end of the best one the next
    episodes begin at the prompt again. A turn is a step of the environment, so that
    each turn of each agent has its place.

    Args:
        width: Turns at each place, >= 2.
    """

    def __init__(self, *, width: int = 4):
        if width < 2:
            raise ValueError(f"width={width} must be >= 2, to compare turns.")
        self.roots = self.width = width

    def __call__(self, point: ForkPoint) -> int:
        """Return 0: places are chosen among finished episodes."""
        return 0
