"""Ratings of policies from game results (openskill)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from rllib_llm.errors import MissingExtraError
from rllib_llm.selfplay.payoffs import GameResult


class Ratings:
    """Strength of each policy as a normal distribution: ``mu`` and ``sigma``.

    Uses the Plackett-Luce model of Weng and Lin 2011 (JMLR 12, 267-300) as implemented
    by openskill, for any number of agents. If a policy plays several agents of a game,
    the update is the mean over all choices of one agent per policy. Each choice is a
    valid game under Plackett-Luce (the ranking of a subset follows the same model). A
    rating depends on the order of the games, so they are processed in the order of
    their episodes, and the state belongs in the checkpoint.

    Raises:
        MissingExtraError: If openskill is not installed.
    """

    def __init__(self) -> None:
        try:
            from openskill.models import PlackettLuce
        except ModuleNotFoundError as error:
            raise MissingExtraError.for_extra("openskill", "games") from error
        self._model = PlackettLuce()
        self._ratings: dict[str, Any] = {}
        self._games: dict[str, int] = {}

    def record(self, results: Iterable[GameResult]) -> None:
        """Add finished games, in the order of their episodes.

        Games in which one policy plays all agents carry no information and are skipped.
        """
        for result in sorted(results, key=lambda result: result.episode):
            if len(set(result.players)) > 1:
                self._rate(result)

    def rating(self, name: str) -> tuple[float, float]:
        """Return ``mu`` and ``sigma``; the initial values for a name without games."""
        rating = self._of(name)
        return rating.mu, rating.sigma

    def ordinal(self, name: str) -> float:
        """Return ``mu - 3 sigma``, a lower bound of the policy's strength."""
        return float(self._of(name).ordinal())

    def games(self, name: str) -> int:
        """Return the number of rated games of ``name``."""
        return self._games.get(name, 0)

    def win_probability(self, a: str, b: str) -> float:
        """Return the probability that ``a`` beats ``b``."""
        return float(self._model.predict_win([[self._of(a)], [self._of(b)]])[0])

    def inherit(self, name: str, source: str) -> None:
        """Copy the rating of ``source`` to ``name``, for a new snapshot."""
        mu, sigma = self.rating(source)
        self._ratings[name] = self._model.rating(mu=mu, sigma=sigma)

    def ranking(self) -> list[str]:
        """Return all names, the highest ordinal first."""
        return sorted(self._ratings, key=lambda name: (-self.ordinal(name), name))

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, JSON-serialisable."""
        ratings = {name: [r.mu, r.sigma] for name, r in self._ratings.items()}
        return {"ratings": ratings, "games": dict(self._games)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state_dict` exactly."""
        self._ratings = {
            name: self._model.rating(mu=mu, sigma=sigma)
            for name, (mu, sigma) in state["ratings"].items()
        }
        self._games = dict(state["games"])

    def _rate(self, result: GameResult) -> None:
        names = list(dict.fromkeys(result.players))
        returns: dict[str, list[float]] = {name: [] for name in names}
        for name, value in zip(result.players, result.returns, strict=True):
            returns[name].append(value)
        # openskill rates teams; each policy is a team of one. Higher scores are better.
        before = [[self._of(name)] for name in names]
        # All choices of one agent per policy.
        updates = [
            self._model.rate(before, scores=list(scores))
            for scores in itertools.product(*returns.values())
        ]
        for name, *rated in zip(names, *updates, strict=True):
            self._ratings[name] = self._model.rating(
                mu=fmean(rating.mu for (rating,) in rated),
                sigma=fmean(rating.sigma for (rating,) in rated),
            )
            self._games[name] = self.games(name) + 1

    def _of(self, name: str) -> Any:
        return self._ratings.get(name) or self._model.rating()
