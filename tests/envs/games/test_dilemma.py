"""The dilemma: payoffs, simultaneous moves, talk."""

import numpy as np
import pytest

from rllib_llm.envs import MultiAgentAdapter, make_env


def rounds_of(moves, **options):
    """Play fixed moves (row, column) until the game is over; return the last step."""
    env = MultiAgentAdapter(make_env("dilemma-v0", options))
    step, totals = env.reset(seed=0), {"row_0": 0.0, "column_0": 0.0}
    while not step.is_over:
        step = env.step(dict(zip(("row_0", "column_0"), moves)))
        for agent, reward in step.rewards:
            totals[agent] += reward
    return step, totals


@pytest.mark.parametrize(
    ("moves", "row", "column"),
    [
        (("cooperate", "cooperate"), 1.0, 1.0),
        (("defect", "defect"), 1 / 3, 1 / 3),
        (("defect", "cooperate"), 5 / 3, 0.0),
        (("cooperate", "defect"), 0.0, 5 / 3),
    ],
)
def test_payoffs_are_axelrods_over_three_times_the_rounds(moves, row, column):
    step, totals = rounds_of(moves)
    assert totals == pytest.approx({"row_0": row, "column_0": column})
    assert step.success is (moves == ("cooperate", "cooperate"))
    assert step.metrics["cooperation"] == moves.count("cooperate") / 2


def test_the_temptation_is_an_option():
    _, totals = rounds_of(("defect", "cooperate"), temptation=4.5)
    assert totals["row_0"] == pytest.approx(1.5)


def test_moves_are_simultaneous():
    env = MultiAgentAdapter(make_env("dilemma-v0"))
    step = env.reset(seed=0)
    assert list(step.observations) == ["row_0", "column_0"]
    assert len(set(step.observations.values())) == 1
    step = env.step({"row_0": "defect", "column_0": "cooperate"})
    assert step.observations == {
        "row_0": "column_0: cooperate. Your move?",
        "column_0": "row_0: defect. Your move?",
    }


def test_talk_is_part_of_the_next_prompt():
    env = MultiAgentAdapter(make_env("dilemma-v0", {"talk": True}))
    env.reset(seed=0)
    texts = {"row_0": "Trust me!\ncooperate", "column_0": "x" * 300 + " defect"}
    step = env.step(texts)
    assert step.observations["column_0"] == "row_0: Trust me! cooperate. Your move?"
    assert len(step.observations["row_0"]) < 240


def test_the_number_of_rounds_is_random_and_hidden():
    env, lengths, texts = MultiAgentAdapter(make_env("dilemma-v0")), [], set()
    for seed in range(200):
        step = env.reset(seed=seed)
        texts.add(step.observations["row_0"])
        lengths.append(env.unwrapped.rounds)
    assert len(texts) == 1
    assert (np.bincount(lengths)[3:] > 40).all() and set(lengths) == {3, 4, 5}


def test_tit_for_tat_answers_in_kind():
    env, rng = MultiAgentAdapter(make_env("dilemma-v0")), np.random.default_rng(0)
    env.reset(seed=0)
    game = env.unwrapped
    assert game.expert_action("row_0", rng) == "cooperate"
    env.step({"row_0": "cooperate", "column_0": "defect"})
    assert game.expert_action("row_0", rng) == "defect"
    assert game.expert_action("column_0", rng) == "cooperate"
