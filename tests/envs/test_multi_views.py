"""PettingZoo's two interfaces, and its own conversion, are one and the same game."""

import numpy as np
import pytest
from multi_toys import ChaosTogether, Together, made, over
from pettingzoo.utils import parallel_to_aec

from rllib_llm.envs import MultiAgentAdapter, Outcome
from rllib_llm.envs.games.dilemma import Dilemma

TEXTS = [
    {"row_0": "cooperate", "column_0": "defect"},
    {"row_0": "hm", "column_0": "cooperate"},
    {"row_0": "I defect"},
    {"row_0": "cooperate", "column_0": "hm"},
    {"column_0": "hm"},
    {"column_0": "cooperate"},
    {"row_0": "defect", "column_0": "defect"},
    {"row_0": "defect", "column_0": "cooperate"},
]


@pytest.mark.parametrize("max_turns", [3, 20])
def test_aec_and_parallel_view_are_the_same_game(max_turns):
    config = {"invalid_action_reward": -0.1, "talk": True, "max_turns": max_turns}
    aec = MultiAgentAdapter(Dilemma(config))
    parallel = MultiAgentAdapter(Dilemma(config).parallel_view())
    for seed in range(3):
        first, second = aec.reset(seed=seed), parallel.reset(seed=seed)
        assert first == second
        for texts in TEXTS:
            first, second = aec.step(texts), parallel.step(texts)
            assert sorted(first.rewards) == sorted(second.rewards)
            first.rewards = second.rewards = []
            assert first == second
            if first.is_over:
                break
        assert first.is_over


def summed(rewards):
    totals = {}
    for agent, reward in rewards:
        totals[agent] = totals.get(agent, 0.0) + reward
    return totals


def test_both_views_agree_whatever_happens():
    for seed in range(100):
        games = [ChaosTogether({"max_turns": 12}) for _ in range(2)]
        views = [
            MultiAgentAdapter(games[0]),
            MultiAgentAdapter(games[1].parallel_view()),
        ]
        first, second = (env.reset(seed=seed) for env in views)
        rng = np.random.default_rng(seed)
        total = {}
        while not first.is_over:
            texts = {a: "?" if rng.random() < 0.2 else "x" for a in first.observations}
            first, second = (env.step(texts) for env in views)
            assert summed(first.rewards) == summed(second.rewards)
            for agent, reward in first.rewards:
                total[agent] = total.get(agent, 0.0) + reward
            first.rewards = second.rewards = []
            assert first == second
        assert total == games[0].granted


def test_departed_agents_are_rewarded_in_both_views():
    plan = [Outcome(terminated=["ann_0"]), over({"ann_0": 1.0, "cid_0": 2.0})]
    for view in (lambda env: env, lambda env: env.parallel_view()):
        env = MultiAgentAdapter(view(made(Together, plan)()))
        env.reset(seed=0)
        env.step(dict.fromkeys(["ann_0", "ben_0", "cid_0"], "x"))
        step = env.step(dict.fromkeys(["ben_0", "cid_0"], "x"))
        assert sorted(step.rewards) == [("ann_0", 1.0), ("cid_0", 2.0)]


def test_pettingzoos_own_conversion_is_the_same_game_asked_one_by_one():
    direct = MultiAgentAdapter(Dilemma())
    converted = MultiAgentAdapter(parallel_to_aec(Dilemma().parallel_view()))
    first, second = direct.reset(seed=5), converted.reset(seed=5)
    totals = [{}, {}]
    while not first.is_over:
        moves = {"row_0": "cooperate", "column_0": "defect"}
        read = dict(first.observations)
        first = direct.step(moves)
        for agent in ("row_0", "column_0"):
            assert second.observations == {agent: read[agent]}
            second = converted.step({agent: moves[agent]})
            for name, reward in second.rewards:
                totals[1][name] = totals[1].get(name, 0.0) + reward
        for name, reward in first.rewards:
            totals[0][name] = totals[0].get(name, 0.0) + reward
    assert second.is_over and first.success == second.success
    assert totals[0] == totals[1] and totals[0]["column_0"] > 1.0
