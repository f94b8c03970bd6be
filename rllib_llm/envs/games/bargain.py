"""Pools of items to divide: splits, their values, and the best splits."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator

import numpy as np

POINTS = 10
"""Value of a whole pool to each side; worths are shares of it, in [0, 1]."""

Share = tuple[int, ...]
"""Number of items of each kind."""


@dataclasses.dataclass(frozen=True)
class Pool:
    """Items to divide between two sides, and their values to each side.

    A split is the share of the first side; the second side gets the rest.

    Attributes:
        counts: Number of items of each kind.
        values: Points for one item of each kind, by side.
    """

    counts: Share
    values: tuple[Share, Share]

    @classmethod
    def draw(cls, rng: np.random.Generator, kinds: int, most: int) -> Pool | None:
        """Draw counts, then values that sum to the total; None if none do."""
        counts = tuple(int(c) for c in rng.integers(1, most + 1, size=kinds))
        fitting = _fitting_values(counts)
        if not fitting:
            return None
        first, second = (fitting[int(i)] for i in rng.integers(len(fitting), size=2))
        return cls(counts, (first, second))

    def splits(self) -> list[Share]:
        """Return all ways to split the pool."""
        return list(itertools.product(*(range(c + 1) for c in self.counts)))

    def rest(self, share: Share) -> Share:
        """Return the remaining items besides ``share``."""
        return tuple(c - s for c, s in zip(self.counts, share, strict=True))

    def worth(self, side: int, share: Share) -> float:
        """Return the worth of ``share`` to a side, in [0, 1]."""
        return sum(map(operator.mul, self.values[side], share)) / POINTS

    def both(self, split: Share) -> tuple[float, float]:
        """Return the worth of a split to the first and to the second side."""
        return self.worth(0, split), self.worth(1, self.rest(split))

    def is_pareto_optimal(self, split: Share) -> bool:
        """Return whether no other split is better for one side and as good for both."""
        mine = self.both(split)
        others = map(self.both, self.splits())
        return not any(
            o != mine and o[0] >= mine[0] and o[1] >= mine[1] for o in others
        )

    def joint_share(self, split: Share) -> float:
        """Return the sum of both worths as a share of the largest possible sum."""
        return sum(self.both(split)) / max(sum(self.both(s)) for s in self.splits())

    def nash_split(self) -> Share:
        """Return the split with the largest product of worths (Nash 1950)."""

        def merit(split: Share) -> tuple[float, float]:
            first, second = self.both(split)
            return first * second, first + second  # the sum breaks ties

        return max(self.splits(), key=merit)


@functools.lru_cache(maxsize=256)
def _fitting_values(counts: Share) -> list[Share]:
    every = itertools.product(range(POINTS + 1), repeat=len(counts))
    return [v for v in every if sum(map(operator.mul, v, counts)) == POINTS]
