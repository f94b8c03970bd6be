"""Ratings of policies by the games they played (openskill)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from statistics import fmean
from typing import Any

from rllib_llm.errors import MissingExtraError
from rllib_llm.selfplay.payoffs import GameResult


class Ratings:
    """Strength of each policy as a normal distribution: ``mu`` and ``sigma``.

    The Plackett-Luce model of Weng and Lin 2011 (JMLR 12, 267-300) for games of any
    number of seats, as openskill implements it. A policy that holds several seats of a
    game is rated by each of them: the update is the mean over all choices of one seat
    per policy, each of which is a game of its own under Plackett-Luce (the order among
    some of the seats follows the same model). A rating depends on the order of games,
    so games are taken in the order of their episodes, and the state belongs in the
    checkpoint.

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

        Games in which one policy holds all seats tell nothing and are left out.
        """
        for result in sorted(results, key=lambda result: result.episode):
            if len(set(result.players)) > 1:
                self._rate(result)

    def rating(self, name: str) -> tuple[float, float]:
        """Return ``mu`` and ``sigma``; those of a newcomer for unknown names."""
        rating = self._of(name)
        return rating.mu, rating.sigma

    def ordinal(self, name: str) -> float:
        """Return ``mu - 3 sigma``: a strength that the policy very likely has."""
        return float(self._of(name).ordinal())

    def games(self, name: str) -> int:
        """Return the number of games that count for ``name``."""
        return self._games.get(name, 0)

    def win_probability(self, a: str, b: str) -> float:
        """Return the probability that ``a`` beats ``b``."""
        return float(self._model.predict_win([[self._of(a)], [self._of(b)]])[0])

    def inherit(self, name: str, source: str) -> None:
        """Give ``name`` the rating of ``source``, for a snapshot just taken."""
        mu, sigma = self.rating(source)
        self._ratings[name] = self._model.rating(mu=mu, sigma=sigma)

    def ranking(self) -> list[str]:
        """Return all names, the highest ordinal first."""
        return sorted(self._ratings, key=lambda name: (-self.ordinal(name), name))

    def state_dict(self) -> dict[str, Any]:
        """Return all there is to know, JSON-serialisable."""
        ratings = {name: [r.mu, r.sigma] for name, r in self._ratings.items()}
        return {"ratings": ratings, "games": dict(self._games)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict`, exactly."""
        self._ratings = {
            name: self._model.rating(mu=mu, sigma=sigma)
            for name, (mu, sigma) in state["ratings"].items()
        }
        self._games = dict(state["games"])

    def _rate(self, result: GameResult) -> None:
        names = list(dict.fromkeys(result.players))
        earned: dict[str, list[float]] = {name: [] for name in names}
        for name, value in zip(result.players, result.returns, strict=True):
            earned[name].append(value)
        before = [[self._of(name)] for name in names]
        # One seat per policy, in all ways.
        updates = [
            self._model.rate(before, scores=list(scores))
            for scores in itertools.product(*earned.values())
        ]
        for name, *rated in zip(names, *updates, strict=True):
            self._ratings[name] = self._model.rating(
                mu=fmean(rating.mu for (rating,) in rated),
                sigma=fmean(rating.sigma for (rating,) in rated),
            )
            self._games[name] = self.games(name) + 1

    def _of(self, name: str) -> Any:
        return self._ratings.get(name) or self._model.rating()
