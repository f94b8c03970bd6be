"""Rows from turn records: merged where the prefix holds, split where it breaks."""

import numpy as np
import pytest

from rllib_llm.connectors.learner.token_rows import build_rows, pad_rows
from rllib_llm.data import columns
from rllib_llm.data.types import FinishReason, Prompt, Turn


def turn(prompt, action, extends=True):
    return Turn(
        prompt_ids=np.array(prompt, np.int32),
        extends=extends,
        action_ids=np.array(action, np.int32),
        action_logps=-np.arange(1, len(action) + 1, dtype=np.float32),
        finish=FinishReason.STOP,
    )


TURNS = [turn([1, 2], [3, 4]), turn([5], [6]), turn([7, 8], [9, 10])]


def test_one_row_while_the_prefix_holds():
    (row,) = build_rows(TURNS, [0.0, 1.0, 2.0])
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert row.turn_ids.tolist() == [-1, -1, 0, 0, -1, 1, -1, -1, 2, 2]
    assert row.rewards.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 2]
    assert row.logps.tolist() == [0, 0, -1, -2, 0, -1, 0, 0, -1, -2]


def test_a_broken_prefix_starts_a_row_and_trains_each_token_once():
    broken = [TURNS[0], turn([1, 5], [6], extends=False), TURNS[2]]
    first, second = build_rows(broken, [0.0, 1.0, 2.0])
    assert first.ids.tolist() == [1, 2, 3, 4]
    assert second.ids.tolist() == [1, 5, 6, 7, 8, 9, 10]
    trained = [r.ids[r.turn_ids >= 0].tolist() for r in (first, second)]
    assert trained == [[3, 4], [6, 9, 10]]


def test_row_per_turn_repeats_context_only():
    merged = build_rows(TURNS, [0.0, 1.0, 2.0])[0]
    rows = build_rows(TURNS, [0.0, 1.0, 2.0], row_per_turn=True)
    assert len(rows) == 3
    for index, row in enumerate(rows):
        assert row.ids.tolist() == merged.ids[: len(row)].tolist()
        assert set(row.turn_ids[row.turn_ids >= 0]) == {index}
    rewards = [float(r.rewards.sum()) for r in rows]
    assert rewards == [0.0, 1.0, 2.0]


def test_row_per_turn_after_a_break_restarts_the_context():
    broken = [TURNS[0], turn([1, 5], [6], extends=False), TURNS[2]]
    rows = build_rows(broken, [0.0, 0.0, 0.0], row_per_turn=True)
    assert [r.ids.tolist() for r in rows] == [
        [1, 2, 3, 4],
        [1, 5, 6],
        [1, 5, 6, 7, 8, 9, 10],
    ]


def test_a_one_turn_episode_is_a_single_turn_row():
    (row,) = build_rows(TURNS[:1], [1.0])
    (split,) = build_rows(TURNS[:1], [1.0], row_per_turn=True)
    for name in ("ids", "turn_ids", "logps", "rewards"):
        assert getattr(row, name).tolist() == getattr(split, name).tolist()


@pytest.mark.parametrize("extends", [True, False])
def test_bootstrap_sees_the_final_observation(extends):
    final = Prompt([11, 12], extends=extends)
    rows = build_rows(TURNS, [0.0] * 3, final_prompt=final, bootstrap=True)
    assert [r.bootstrap for r in rows] == [False] * (len(rows) - 1) + [True]
    assert rows[-1].ids.tolist()[-2:] == [11, 12]
    assert len(rows) == (1 if extends else 2)
    out = pad_rows(rows, pad_id=0, trained=[True] * len(rows))
    assert out[columns.BOOTSTRAP_COLUMN][-1] == len(rows[-1])
    assert not out["loss_mask"][-1, len(rows[-1]) - 2 :].any()


def test_padding_is_neither_attended_nor_trained():
    rows = build_rows(TURNS[:1], [1.0]) + build_rows(TURNS, [0.0, 1.0, 2.0])
    out = pad_rows(rows, pad_id=99, trained=[True, False])
    assert out[columns.INPUT_IDS].shape == (2, 10)
    assert (out[columns.INPUT_IDS][0, 4:] == 99).all()
    assert not out[columns.ATTENTION_MASK][0, 4:].any()
    assert not out["loss_mask"][1].any()  # not to be trained
    assert out["loss_mask"][0].tolist() == [False, False, True, True] + [False] * 6
