"""Rejected candidate actions, appended to a row after its conversation.

They are scored together with the action taken, in one pass over one row, by an
attention mask that hides them from each other (:mod:`rllib_llm.modules.action_head`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rllib_llm.data import columns
from rllib_llm.envs.admissible import EXPERT_PROBS
from rllib_llm.errors import EnvContractError

if TYPE_CHECKING:
    from rllib_llm.connectors.learner.token_rows import Row, RowBuilder


@dataclasses.dataclass(slots=True)
class Choices:
    """Assignment of a row's tokens to candidate actions.

    Attributes:
        starts: Column where the action taken in the token's turn starts, else -1. [T]
        candidates: Number of the token's action in its turn: 0 is the action taken, -1
            a token outside all actions. [T]
        weights: Weight of the token's log-probability in the action score, or 0. [T]
        expert_probs: Expert's probability of the action that begins at the token, NaN
            if it is unknown; else 0. [T]
        end: Column after the conversation; the rejected actions start here.
    """

    starts: np.ndarray
    candidates: np.ndarray
    weights: np.ndarray
    expert_probs: np.ndarray
    end: int


def append_rejected(builder: RowBuilder) -> Choices:
    """Append a row's rejected actions and return the assignment of all its tokens."""
    end = builder.length
    starts, candidates = (np.full(end, -1, np.int32) for _ in range(2))
    weights, expert = (np.zeros(end, np.float32) for _ in range(2))
    behind = []
    for start, turn, choice in builder.choices:
        taken = slice(start, start + len(turn.action_ids))
        starts[taken], candidates[taken] = start, 0
        # One weight for all tokens of an action: 1 in GLAM, one over its length in
        # TWOSOME.
        weights[taken] = choice.weights[0]
        probs = choice.expert_probs
        if probs is None:
            probs = np.full(1 + len(choice.others), np.nan, np.float32)
        expert[start] = probs[0]
        for number, ids in enumerate(choice.others, start=1):
            builder.prompt(ids)
            weight = choice.weights[number]
            # In the order of the appended tokens, after those of the conversation.
            at_first = np.zeros(len(ids), np.float32)
            at_first[0] = probs[number]
            behind.append(
                [*(np.full(len(ids), x) for x in (start, number, weight)), at_first]
            )
    starts, candidates, weights, expert = (
        np.concatenate(c)
        for c in zip((starts, candidates, weights, expert), *behind, strict=True)
    )
    return Choices(starts, candidates, weights, expert, end=end)


def pad_choices(rows: Sequence[Row], size: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return the columns of rows with choices, each right-padded to ``size``. [B, T]"""
    out: dict[str, np.ndarray] = {
        columns.CHOICE_STARTS: np.full(size, -1, np.int64),
        columns.CANDIDATES: np.full(size, -1, np.int64),
        columns.SCORE_WEIGHTS: np.zeros(size, np.float32),
    }
    for i, row in enumerate(rows):
        if row.choices is not None:
            n = len(row)
            out[columns.CHOICE_STARTS][i, :n] = row.choices.starts
            out[columns.CANDIDATES][i, :n] = row.choices.candidates
            out[columns.SCORE_WEIGHTS][i, :n] = row.choices.weights
    return out


def expert_column(rows: Sequence[Row], size: tuple[int, int]) -> np.ndarray:
    """Return the expert's probabilities at the first tokens of actions. [B, T]

    Raises:
        EnvContractError: If the environment did not report them.
    """
    out = np.zeros(size, np.float32)
    for i, row in enumerate(rows):
        if row.choices is not None:
            out[i, : len(row)] = row.choices.expert_probs
    if np.isnan(out).any():
        raise EnvContractError(
            f"An info of the environment has no {EXPERT_PROBS!r}, which the loss term "
            "distill_actions reads with teacher='expert'. Let it report them in every "
            "turn, or use teacher='reference'."
        )
    return out
