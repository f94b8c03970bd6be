"""Results of games and the payoff matrix of win rates."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class GameResult:
    """Result of a finished game.

    Attributes:
        episode: Number of the episode, unique over the run. Results are processed in
            this order, independent of the order in which runners deliver them.
        players: Policy of each agent; a policy may occur several times.
        returns: Return of each agent.

    Raises:
        ValueError: If players and returns do not match, or a return is not finite.
    """

    episode: int
    players: tuple[str, ...]
    returns: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.players) != len(self.returns) or len(self.players) < 2:
            raise ValueError(
                f"Episode {self.episode}: players={self.players} and returns="
                f"{self.returns} must have equal lengths of at least 2. Pass one "
                "player and one return per agent."
            )
        if not all(math.isfinite(value) for value in self.returns):
            raise ValueError(
                f"Episode {self.episode}: returns={self.returns} must be finite. Leave "
                "out games that failed."
            )

    def scores(self) -> list[tuple[str, str, float]]:
        """Return ``(a, b, score of a)`` for each pair of agents of different policies.

        The score is 1 if ``a`` has the higher return, 0.5 if the returns are equal.
        """
        agents = zip(self.players, self.returns, strict=True)
        return [
            (a, b, 1.0 if ra > rb else 0.5 if ra == rb else 0.0)
            for (a, ra), (b, rb) in itertools.combinations(agents, 2)
            if a != b
        ]


class Payoffs:
    """Win rates between policies, with counts.

    The win rate of ``a`` against ``b`` is ``(s + prior / 2) / (n + prior)``, with ``s``
    the score and ``n`` the weight of their games. It is strictly between 0 and 1, and
    1/2 without games. A new game multiplies the weight of the pair's earlier games by
    ``decay``, because a learner changes (AlphaStar, Vinyals et al. 2019, Supplementary:
    0.99).

    Args:
        decay: In (0, 1]; 1 weights all games equally.
        prior: Number of draws assumed for every pair, > 0.
    """

    def __init__(self, decay: float = 0.99, prior: float = 2.0):
        if not 0 < decay <= 1:
            raise ValueError(f"decay={decay!r} must lie in (0, 1]. Use e.g. 0.99.")
        if not (prior > 0 and math.isfinite(prior)):
            raise ValueError(f"prior={prior!r} must be a number > 0. Use e.g. 2.0.")
        self.decay, self.prior = decay, prior
        # By (a, b) with a < b: score of a, weight, number of games.
        self._pairs: dict[tuple[str, str], tuple[float, float, int]] = {}

    def record(self, result: GameResult) -> None:
        """Add one game."""
        for a, b, score in result.scores():
            if b < a:
                a, b, score = b, a, 1.0 - score
            won, weight, games = self._pairs.get((a, b), (0.0, 0.0, 0))
            won, weight = self.decay * won + score, self.decay * weight + 1.0
            self._pairs[a, b] = won, weight, games + 1

    def games(self, a: str, b: str) -> int:
        """Return the number of games between ``a`` and ``b``."""
        return self._pair(a, b)[2]

    def win_rate(self, a: str, b: str) -> float:
        """Return the win rate of ``a`` against ``b``, in (0, 1)."""
        score, weight, _ = self._pair(a, b)
        return (score + self.prior / 2) / (weight + self.prior)

    def forget(self, name: str) -> None:
        """Drop all games of ``name``."""
        self._pairs = {k: v for k, v in self._pairs.items() if name not in k}

    def table(self, names: list[str]) -> list[list[float]]:
        """Return the win rates, row against column; 1/2 on the diagonal."""
        return [[0.5 if a == b else self.win_rate(a, b) for b in names] for a in names]

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, JSON-serialisable."""
        return {"pairs": [[*names, *sums] for names, sums in self._pairs.items()]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        self._pairs = {(a, b): (s, w, n) for a, b, s, w, n in state["pairs"]}

    def _pair(self, a: str, b: str) -> tuple[float, float, int]:
        if a <= b:
            return self._pairs.get((a, b), (0.0, 0.0, 0))
        score, weight, games = self._pairs.get((b, a), (0.0, 0.0, 0))
        return weight - score, weight, games
