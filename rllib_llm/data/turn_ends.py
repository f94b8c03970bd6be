"""Last tokens of turns and episodes in a batch of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import read


@dataclasses.dataclass(frozen=True)
class TurnEnds:
    """Places of the first and last trained token of every turn, in host memory.

    Attributes:
        rows: Row of each turn. int64 [M]
        cols: Column of its last trained token. int64 [M]
        turns: Number of the turn in its episode. int64 [M]
        episodes: Number of its episode. int64 [M]
        firsts: Column of its first trained token. int64 [M]
    """

    rows: np.ndarray
    cols: np.ndarray
    turns: np.ndarray
    episodes: np.ndarray
    firsts: np.ndarray

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> TurnEnds:
        """Return those of a batch, in order of rows and columns."""
        rows, cols, of_token, ends = _trained(batch)
        firsts = cols[np.append(True, ends[:-1])[: len(ends)]]
        rows, cols, of_token = rows[ends], cols[ends], of_token[ends]
        episodes = read(batch, columns.EPISODE_INDEX)[rows]
        return cls(rows, cols, of_token, episodes, firsts)

    def last(self) -> np.ndarray:
        """Return the index of each episode's last turn, by number of the episode."""
        order = np.lexsort((self.turns, self.episodes))
        is_last = np.append(np.diff(self.episodes[order]) != 0, True)[: len(order)]
        return order[is_last]

    def next_turns(self) -> np.ndarray:
        """Return the index of each turn's next one, -1 after the last. int64 [M]"""
        order = np.lexsort((self.turns, self.episodes))
        after = np.full(len(order), -1, np.int64)
        # Of the same episode, whose rows may be several.
        continues = np.diff(self.episodes[order]) == 0
        after[order[:-1][continues]] = order[1:][continues]
        return after


def turns_of_tokens(batch: Mapping[str, Any]) -> np.ndarray:
    """Return the turn of each trained token, as an index into a batch's TurnEnds. [K]

    Tokens are in order of rows and columns.
    """
    ends = _trained(batch)[-1]
    return np.cumsum(ends) - ends


def _trained(batch: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Return row, column and turn of each trained token, and whether it ends it. [K]"""
    mask, turns = read(batch, Columns.LOSS_MASK), read(batch, columns.TURN_IDS)
    rows, cols = np.nonzero(mask)
    of_token = turns[rows, cols]
    # A token ends a turn if the next trained one is of another row or turn.
    changes = (np.diff(rows) != 0) | (np.diff(of_token) != 0)
    return rows, cols, of_token, np.append(changes, True)[: len(rows)]
