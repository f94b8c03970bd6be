"""Game results and the payoff matrix."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from rllib_llm.selfplay.payoffs import GameResult, Payoffs


def random_results(seed, names="abcd", games=200, agents=2):
    rng = np.random.default_rng(seed)
    return [
        GameResult(
            episode,
            tuple(rng.choice(list(names), size=agents).tolist()),
            tuple(rng.integers(-1, 2, size=agents).astype(float).tolist()),
        )
        for episode in range(games)
    ]


def slow_win_rate(results, a, b, decay, prior):
    """Return the win rate with each game weighted by decay ** number of later games."""
    scores = []
    for result in results:
        for i, j in itertools.combinations(range(len(result.players)), 2):
            pair = (result.players[i], result.players[j])
            if pair not in ((a, b), (b, a)) or a == b:
                continue
            gap = result.returns[i] - result.returns[j]
            gap = gap if pair == (a, b) else -gap
            scores.append(1.0 if gap > 0 else 0.5 if gap == 0 else 0.0)
    weights = [decay ** (len(scores) - 1 - k) for k in range(len(scores))]
    score = sum(w * s for w, s in zip(weights, scores))
    return (score + prior / 2) / (sum(weights) + prior), len(scores)


@pytest.mark.parametrize("agents", [2, 3])
@pytest.mark.parametrize(("decay", "prior"), [(1.0, 2.0), (0.9, 1.0)])
def test_win_rates_equal_a_slow_loop(decay, prior, agents):
    results = random_results(0, agents=agents)
    payoffs = Payoffs(decay, prior)
    for result in results:
        payoffs.record(result)
    for a, b in itertools.permutations("abcd", 2):
        rate, games = slow_win_rate(results, a, b, decay, prior)
        assert payoffs.win_rate(a, b) == pytest.approx(rate, abs=1e-12)
        assert payoffs.games(a, b) == games
        assert payoffs.win_rate(a, b) + payoffs.win_rate(b, a) == pytest.approx(1)


def test_table_and_unknown_names():
    payoffs = Payoffs()
    payoffs.record(GameResult(0, ("a", "b"), (1.0, -1.0)))
    assert payoffs.table(["a", "b", "c"]) == [
        [0.5, 2 / 3, 0.5],
        [pytest.approx(1 / 3), 0.5, 0.5],
        [0.5, 0.5, 0.5],
    ]


def test_games_against_oneself_do_not_count():
    payoffs = Payoffs()
    payoffs.record(GameResult(0, ("a", "a"), (1.0, -1.0)))
    assert payoffs.games("a", "a") == 0
    # One policy as two agents against another policy: both pairs count.
    payoffs.record(GameResult(1, ("a", "a", "b"), (1.0, 0.0, 0.0)))
    assert payoffs.games("a", "b") == 2


def test_state_round_trip_midway_is_exact():
    results = random_results(1)
    whole, first, second = Payoffs(0.95), Payoffs(0.95), Payoffs(0.95)
    for result in results:
        whole.record(result)
    for result in results[:77]:
        first.record(result)
    second.load_state(json.loads(json.dumps(first.state_dict())))
    for result in results[77:]:
        second.record(result)
    assert second.state_dict() == whole.state_dict()


def test_forget_drops_all_games_of_a_name():
    payoffs = Payoffs()
    for result in random_results(2):
        payoffs.record(result)
    kept = payoffs.win_rate("a", "c")
    payoffs.forget("b")
    assert payoffs.games("a", "b") == payoffs.games("b", "d") == 0
    assert payoffs.win_rate("a", "c") == kept


@pytest.mark.parametrize(
    ("players", "returns"),
    [
        (("a",), (1.0,)),
        (("a", "b"), (1.0,)),
        (("a", "b"), (float("nan"), 0.0)),
    ],
)
def test_invalid_results_are_refused(players, returns):
    with pytest.raises(ValueError, match="Episode 7"):
        GameResult(7, players, returns)


@pytest.mark.parametrize("settings", [{"decay": 0.0}, {"decay": 1.1}, {"prior": 0.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Payoffs(**settings)
