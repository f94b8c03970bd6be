"""Ratings; skipped without openskill."""

from __future__ import annotations

import builtins
import json

import numpy as np
import pytest

from rllib_llm.errors import MissingExtraError
from rllib_llm.selfplay.payoffs import GameResult
from rllib_llm.selfplay.ratings import Ratings


def test_a_missing_library_raises(monkeypatch):
    real = builtins.__import__

    def without(wanted, *args, **kwargs):
        if wanted.startswith("openskill"):
            raise ModuleNotFoundError("No module named 'openskill'", name="openskill")
        return real(wanted, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"rllib-llm\[games\]"):
        Ratings()


@pytest.fixture
def results():
    """Return 100 games in which "strong" mostly wins and "weak" mostly loses."""
    pytest.importorskip("openskill")
    names = ["strong", "middle", "weak"]
    pairs = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)]
    found = []
    for episode in range(100):
        a, b = pairs[episode % 6]
        upset = episode % 7 == 0
        returns = (1.0, -1.0) if (a < b) != upset else (-1.0, 1.0)
        found.append(GameResult(episode, (names[a], names[b]), returns))
    return found


def rated(results):
    ratings = Ratings()
    ratings.record(results)
    return ratings


def test_the_ranking_matches_the_strengths(results):
    ratings = rated(results)
    assert ratings.ranking() == ["strong", "middle", "weak"]
    assert ratings.win_probability("strong", "weak") > 0.7
    assert ratings.win_probability("strong", "weak") + ratings.win_probability(
        "weak", "strong"
    ) == pytest.approx(1)
    mu, sigma = ratings.rating("strong")
    assert ratings.ordinal("strong") == pytest.approx(mu - 3 * sigma)
    assert sigma < ratings.rating("nobody")[1]
    assert sum(map(ratings.games, ("strong", "middle", "weak"))) == 200


def test_one_game_equals_the_published_update(results):
    """Compare with Weng and Lin's Plackett-Luce step of two new players."""
    ratings = Ratings()
    ratings.record([GameResult(0, ("a", "b"), (1.0, 0.0))])
    mu, sigma, beta, kappa = 25.0, 25 / 3, 25 / 6, 1e-4
    tau = 25 / 300
    variance = sigma**2 + tau**2
    c = (2 * (variance + beta**2)) ** 0.5
    p = 0.5  # exp(mu / c) / sum of both
    omega, delta = 1 - p, p * (1 - p)
    gamma = variance**0.5 / c
    wanted_mu = mu + variance / c * omega
    shrink = max(1 - variance / c**2 * gamma * delta, kappa)
    found_mu, found_sigma = ratings.rating("a")
    assert found_mu == pytest.approx(wanted_mu)
    assert found_sigma == pytest.approx((variance * shrink) ** 0.5)
    assert ratings.rating("b")[0] == pytest.approx(2 * mu - wanted_mu)


def test_games_are_processed_in_the_order_of_their_episodes(results):
    assert rated(results[::-1]).state_dict() == rated(results).state_dict()
    renumbered = [
        GameResult(len(results) - r.episode, r.players, r.returns) for r in results
    ]
    assert rated(renumbered).state_dict() != rated(results).state_dict()


def test_resumed_ratings_are_identical(results):
    killed, resumed = rated(results[:37]), Ratings()
    resumed.load_state(json.loads(json.dumps(killed.state_dict())))
    resumed.record(results[37:])
    assert resumed.state_dict() == rated(results).state_dict()
    assert resumed.ranking() == rated(results).ranking()


def test_a_snapshot_inherits_its_rating(results):
    ratings = rated(results)
    ratings.inherit("snapshot", "strong")
    assert ratings.rating("snapshot") == ratings.rating("strong")
    assert ratings.games("snapshot") == 0
    before = ratings.rating("strong")
    ratings.record([GameResult(500, ("snapshot", "weak"), (1.0, -1.0))])
    assert ratings.rating("strong") == before
    assert ratings.rating("snapshot") != before


def test_games_against_oneself_are_left_out(results):
    ratings = rated(results)
    before = ratings.state_dict()
    ratings.record([GameResult(500, ("weak", "weak"), (1.0, -1.0))])
    ratings.record([GameResult(501, ("weak",) * 3, (1.0, -1.0, 0.0))])
    assert ratings.state_dict() == before


def three_agents(strength, count, seed=0):
    """Return games of one agent of "new" against two of "old"; the best draw wins."""
    rng = np.random.default_rng(seed)
    for episode in range(count):
        # Plackett-Luce: the lowest of exponentials with these rates comes first.
        times = rng.exponential(1 / np.array([strength, 1.0, 1.0]))
        order = rng.permutation(3)  # position of each agent
        players = tuple(("new", "old", "old")[i] for i in order)
        returns = tuple(1.0 if i == times.argmin() else 0.0 for i in order)
        yield GameResult(episode, players, returns)


@pytest.mark.parametrize(
    ("strength", "low", "high"), [(6.0, 0.7, 1.0), (1.0, 0.4, 0.6), (1 / 6, 0.0, 0.3)]
)
def test_a_policy_of_several_agents_is_rated(results, strength, low, high):
    """Equal strengths get equal ratings, though two agents win twice as often."""
    ratings = rated(three_agents(strength, 600))
    assert ratings.games("new") == ratings.games("old") == 600
    assert low < ratings.win_probability("new", "old") < high
    assert ratings.rating("new")[1] < 8  # 25 / 3 at the start


def test_several_agents_of_one_policy_are_a_mean_over_choices(results):
    ratings = rated([GameResult(0, ("a", "b", "a"), (2.0, 1.0, 0.0))])
    won = rated([GameResult(0, ("a", "b"), (2.0, 1.0))])
    lost = rated([GameResult(0, ("a", "b"), (0.0, 1.0))])
    for name in ("a", "b"):
        expected = np.mean([won.rating(name), lost.rating(name)], axis=0)
        assert ratings.rating(name) == pytest.approx(tuple(expected))


def test_draws_and_many_agents(results):
    ratings = Ratings()
    ratings.record([GameResult(0, ("a", "b", "c"), (2.0, 1.0, 1.0))])
    assert ratings.rating("a")[0] > ratings.rating("b")[0]
    assert ratings.rating("b")[0] == pytest.approx(ratings.rating("c")[0])
