"""Rows and advantages of an agent whose conversations alternate."""

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.advantages.gae import token_gae
from rllib_llm.connectors.learner.token_gae import GAESettings, TokenGAE
from rllib_llm.connectors.learner.token_rows import build_rows, pad_rows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData
from rllib_llm.data.types import FinishReason, Prompt, Turn

# Conversations 0 and 1 alternate; 0 is rewritten at its third turn.
NUMBERS = [0, 1, 0, 1, 0, 2]
EXTENDS = [True, True, True, True, False, True]


def turn(index):
    sampled = np.arange(2 + index % 2, dtype=np.int32) + 100 * (index + 1)
    return Turn(
        prompt_ids=np.array([index], np.int32),
        extends=EXTENDS[index],
        action_ids=sampled,
        action_logps=np.zeros(len(sampled), np.float32),
        finish=FinishReason.STOP,
        env_t=index,
        conversation=NUMBERS[index],
    )


TURNS = [turn(i) for i in range(len(NUMBERS))]
REWARDS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def ids_of(indices):
    parts = [[*TURNS[i].prompt_ids, *TURNS[i].action_ids] for i in indices]
    return [int(i) for part in parts for i in part]


def test_rows():
    rows = build_rows(TURNS, REWARDS)
    assert [row.ids.tolist() for row in rows] == [
        ids_of([0, 2]),
        ids_of([1, 3]),
        ids_of([4]),
        ids_of([5]),
    ]
    assert sum(row.rewards.sum() for row in rows) == sum(REWARDS)
    assert not any(row.bootstrap for row in rows)


def test_a_row_per_turn_repeats_its_own_conversation():
    rows = build_rows(TURNS, REWARDS, row_per_turn=True)
    assert [row.ids.tolist() for row in rows] == [
        *[ids_of([0]), ids_of([1]), ids_of([0, 2]), ids_of([1, 3])],
        *[ids_of([4]), ids_of([5])],
    ]


@pytest.mark.parametrize(
    "number, row", [(0, 2), (1, 1), (2, 3), (7, 4), (None, 3)], ids=str
)
def test_the_row_of_the_last_prompt_bootstraps(number, row):
    final = {} if number is None else {"final_conversation": number}
    prompt = None if number is None else Prompt([9, 9], extends=True)
    rows = build_rows(TURNS, REWARDS, final_prompt=prompt, bootstrap=True, **final)
    assert [r.bootstrap for r in rows] == [i == row for i in range(len(rows))]
    if prompt is not None:
        assert rows[row].ids[-2:].tolist() == [9, 9]


def test_advantages_follow_time_and_not_rows():
    """One sequence over the turns, against a loop over turns in their order."""
    rows = build_rows(TURNS, REWARDS, bootstrap=True)
    data = pad_rows(rows, pad_id=0, trained=[True] * len(rows))
    rng = np.random.default_rng(0)
    values = rng.normal(size=data[columns.INPUT_IDS].shape)
    data[columns.VALUES] = torch.tensor(values)
    data[columns.TOKEN_REWARDS] = torch.tensor(data[columns.TOKEN_REWARDS])
    data[columns.EPISODE_INDEX] = np.zeros(len(rows), np.int64)
    settings = GAESettings(gamma=0.9, lambda_=0.8, whiten=False)
    TokenGAE({"p": settings})._add_advantages(data, settings)
    got = data[Columns.ADVANTAGES].numpy()
    # Each turn's tokens by its row and columns, in time order.
    places = [np.argwhere(data[columns.TURN_IDS] == i) for i in range(len(TURNS))]
    order = np.concatenate(places)
    lengths = [len(p) for p in places]
    ends = np.zeros(len(order), bool)
    ends[np.cumsum(lengths) - 1] = True
    rewards = np.zeros(len(order))
    rewards[ends] = REWARDS
    column = data[columns.BOOTSTRAP_COLUMN]
    assert column.tolist()[:3] == [-1, -1, -1]
    want, _ = token_gae(
        rewards,
        values[order[:, 0], order[:, 1]],
        gamma=np.where(ends, 0.9, 1.0),
        lambda_=np.where(ends, 0.8, 1.0),
        bootstrap_value=values[3, column[3]],
    )
    np.testing.assert_allclose(got[order[:, 0], order[:, 1]], want, rtol=1e-5)
    assert not got[~data[Columns.LOSS_MASK]].any()


def test_conversations_keep_their_own_tokens():
    data = EpisodeData()
    seen = {}
    for each in TURNS:
        data.enter_conversation(each.conversation)
        data.record(each)
        before = seen.get(each.conversation, []) if each.extends else []
        seen[each.conversation] = [*before, *each.prompt_ids, *each.action_ids]
        assert data.ids == seen[each.conversation]
    assert data.num_tokens == sum(map(len, seen.values()))
    assert sorted(data.other_conversations) == [0, 1]
