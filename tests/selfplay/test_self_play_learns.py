"""League, ratings and exploitability with a tabular policy on Kuhn poker."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pyspiel")
pytest.importorskip("openskill")

from rllib_llm.envs import make_env
from rllib_llm.selfplay import GameResult, League, Ratings, measure_exploitability

WORDS = ("pass", "bet")


class Table:
    """Softmax policy over two words by prompt, trained with REINFORCE."""

    def __init__(self, logits=()):
        self.logits = {key: value.copy() for key, value in dict(logits).items()}

    def probs(self, prompt):
        weights = np.exp(self.logits.get(prompt, np.zeros(2)))
        return weights / weights.sum()

    def learn(self, prompt, word, return_, lr=0.05):
        gradient = np.eye(2)[word] - self.probs(prompt)
        logits = self.logits.get(prompt, np.zeros(2)) + lr * return_ * gradient
        self.logits[prompt] = logits


def play(env, seed, assignment, tables, rng):
    """Play a game; return (agent, prompt, word) of each turn and all returns."""
    env.reset(seed=seed)
    turns, return_ = [], dict.fromkeys(env.possible_agents, 0.0)
    while not any(env.terminations.values()):
        agent = env.agent_selection
        prompt = env.observe(agent)["text"]
        word = int(rng.random() < tables[assignment[agent]].probs(prompt)[1])
        turns.append((agent, prompt, word))
        env.step(WORDS[word])
        for name, reward in env.rewards.items():
            return_[name] += reward
    return turns, return_


def test_self_play_in_a_league_lowers_exploitability():
    env = make_env("open_spiel/kuhn_poker-v0", {"style": "short"})
    rng = np.random.default_rng(0)
    league = League(opponents="even", snapshot_min_games=200, snapshot_max_games=400)
    ratings, tables = Ratings(), {"learner": Table()}
    sums = {}

    def average(conversations, words):
        played = [sums[chat[-1]["content"]] for chat in conversations]
        return [(row / row.sum()).tolist() for row in played]

    for iteration in range(60):
        if league.should_snapshot():
            name = f"snapshot_{iteration}"
            tables[name] = Table(tables["learner"].logits)
            league.add(name, iteration)
            ratings.inherit(name, "learner")
        results = []
        for seed in range(100 * iteration, 100 * iteration + 100):
            assignment = league.assignment(seed, env.possible_agents)
            turns, return_ = play(env, seed, assignment, tables, rng)
            for agent, prompt, word in turns:
                if assignment[agent] == "learner":
                    tables["learner"].learn(prompt, word, return_[agent])
            players, returns = tuple(assignment.values()), tuple(return_.values())
            results.append(GameResult(seed, players, returns))
        league.record(results)
        ratings.record(results)
        for prompt in tables["learner"].logits:
            row = tables["learner"].probs(prompt)
            sums[prompt] = sums.get(prompt, 0) + row

    measured = measure_exploitability(env.game_text, average)
    assert measured.exploitability < 0.25  # 0.458 for the initial uniform policy
    assert measured.values[0] == pytest.approx(-1 / 18, abs=0.1)
    assert len(league.members) >= 3
    assert set(ratings.ranking()) == {"learner", *(m.name for m in league.members)}
