"""Policy-swap matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rllib_llm.selfplay.matrix import SwapMatrix
from rllib_llm.selfplay.payoffs import GameResult

AGENTS = ("alice_0", "bob_0")


def random_games(seed=0, games=300):
    rng = np.random.default_rng(seed)
    return [
        GameResult(
            i,
            tuple(rng.choice(["p", "q", "r"], size=2).tolist()),
            tuple(rng.normal(size=2).tolist()),
        )
        for i in range(games)
    ]


def test_cells_equal_a_slow_loop():
    games = random_games()
    matrix = SwapMatrix(AGENTS, games)
    for index, agent in enumerate(AGENTS):
        for policy in "pqr":
            values = [g.returns[index] for g in games if g.players[index] == policy]
            mean = sum(values) / len(values)
            variance = sum((v - mean) ** 2 for v in values) / (len(values) - 1)
            quantile = stats.t.ppf(0.975, len(values) - 1)
            cell = matrix.cell(agent, policy)
            assert cell.games == len(values)
            assert cell.mean == pytest.approx(mean)
            assert cell.half_width == pytest.approx(
                quantile * math.sqrt(variance / len(values))
            )
    values = [g.returns[1] for g in games if g.players == ("p", "q")]
    assert matrix.assignment(("p", "q"), "bob_0").mean == pytest.approx(np.mean(values))


def test_the_interval_covers():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        games = [
            GameResult(i, ("a", "b"), (x, 0.0))
            for i, x in enumerate(rng.normal(size=8))
        ]
        cell = SwapMatrix(AGENTS, games).cell("alice_0", "a")
        hits += abs(cell.mean) <= cell.half_width
    assert 0.92 < hits / 400 < 0.98


def test_the_table_in_markdown():
    games = [
        GameResult(0, ("p", "q"), (1.0, 1.0)),
        GameResult(1, ("p", "q"), (1.0, 0.0)),
        GameResult(2, ("q", "q"), (0.0, 0.0)),
    ]
    assert SwapMatrix(AGENTS, games).to_markdown().splitlines() == [
        "| policy | alice_0 | bob_0 |",
        "| --- | --- | --- |",
        "| p | 1.000 ± 0.000 | - |",
        "| q | 0.000 | 0.333 ± 1.434 |",
    ]


def test_games_with_another_number_of_agents_are_refused():
    with pytest.raises(ValueError, match="Episode 3"):
        SwapMatrix(AGENTS, [GameResult(3, ("a", "b", "c"), (0.0, 0.0, 0.0))])
