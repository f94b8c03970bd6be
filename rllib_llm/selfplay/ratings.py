"""Ratings of policies by the games they played (openskill)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllib_llm.errors import MissingExtraError
from rllib_llm.selfplay.payoffs import GameResult


class Ratings:
    """Strength of each policy as a normal distribution: ``mu`` and ``sigma``.

    The Plackett-Luce model of Weng and Lin 2011 (JMLR 12, 267-300) for games of any
    number of seats, as openskill implements it. A rating depends on the order of
    games, so games are taken in the order of their episodes, and the state belongs in
    the checkpoint.

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

        Games in which a policy plays against itself tell nothing and are left out.
        """
        for result in sorted(results, key=lambda result: result.episode):
            if len(set(result.players)) == len(result.players):
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
        teams = [[self._of(name)] for name in result.players]
        rated = self._model.rate(teams, scores=list(result.returns))
        for name, (rating,) in zip(result.players, rated, strict=True):
            self._ratings[name] = rating
            self._games[name] = self.games(name) + 1

    def _of(self, name: str) -> Any:
        return self._ratings.get(name) or self._model.rating()
