"""Shares of repeated n-grams, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rllib_llm.callbacks.episode_metrics import returns_std
from rllib_llm.callbacks.repetition import repetition
from rllib_llm.data.types import FinishReason, Turn


def turn(action, prompt=()):
    return Turn(
        prompt_ids=np.array(prompt, np.int32),
        extends=True,
        action_ids=np.array(action, np.int32),
        action_logps=np.zeros(len(action), np.float32),
        finish=FinishReason.STOP,
    )


def test_a_turn_that_repeats_itself():
    # 5 n-grams: 1212, 2121, 1212, 2121, 1212.
    found = repetition([turn([1, 2, 1, 2, 1, 2, 1, 2])])
    assert found["repeat_in_turn_frac"] == [pytest.approx(3 / 5)]
    assert found["repeat_of_turns_frac"] == []
    assert repetition([turn(range(50))])["repeat_in_turn_frac"] == [0.0]


def test_a_turn_that_repeats_earlier_ones():
    turns = [turn([1, 2, 3, 4, 5]), turn([9, 1, 2, 3, 4]), turn([1, 2, 3, 4])]
    assert repetition(turns)["repeat_of_turns_frac"] == [0.5, 1.0]


def test_a_turn_that_copies_its_prompt():
    found = repetition([turn([1, 2, 3, 4, 5, 6], prompt=[7, 1, 2, 3, 4, 5])])
    assert found["copied_prompt_frac"] == [pytest.approx(2 / 3)]
    assert repetition([turn([1, 2, 3, 4])])["copied_prompt_frac"] == [0.0]


def test_short_turns_have_no_values():
    assert not any(repetition([turn([1, 2, 3]), turn([])]).values())


def test_order_matters():
    found = repetition([turn([1, 2, 3, 4, 9, 4, 3, 2, 1])])
    assert found["repeat_in_turn_frac"] == [0.0]


def test_standard_deviation_of_returns_per_group():
    from callback_helpers import make_episode

    episodes = [make_episode([r], seed=s) for s, r in [(0, 1), (0, 3), (1, 2), (1, 2)]]
    assert returns_std(episodes, group_size=2) == [1.0, 0.0]
    assert returns_std(episodes, group_size=1) == [pytest.approx(0.5**0.5)]
