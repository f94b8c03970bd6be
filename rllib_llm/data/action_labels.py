"""Labels of the actions that an environment parsed from replies, and the replies."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.episode_data import SAMPLED, episode_data
from rllib_llm.data.micro_batches import read
from rllib_llm.errors import EnvContractError
from rllib_llm.seeding import stable_seed

PARSED_ACTION = "parsed_action"
"""Key of an info with the action that the environment parsed from the text."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


def action_label(parsed: object, count: int) -> int:
    """Return the label of a parsed action, in [0, ``count``).

    A hash of its text form, so that no table of actions has to be kept. Different
    actions may share a label. None, an invalid reply, is an action like others.

    Raises:
        EnvContractError: The action has no text form but its place in memory.
    """
    text = ast.dump(parsed) if isinstance(parsed, ast.AST) else repr(parsed)
    if _ADDRESS.search(text):
        raise EnvContractError(
            f"The parsed action {text} has no text form, by which actions are "
            "compared. Let parse() return texts, numbers or dataclasses."
        )
    return stable_seed(PARSED_ACTION, text) % count


def labels_of_turns(episode: Any, count: int) -> np.ndarray:
    """Return the label of each turn's action. int64 [H]

    Raises:
        EnvContractError: The environment did not report it.
    """
    # The first info is that of the reset.
    infos = [info or {} for info in episode.get_infos()][1:]
    if any(PARSED_ACTION not in info for info in infos):
        raise EnvContractError(
            f"An info of the environment has no {PARSED_ACTION!r}, from which "
            "scorer.loss='causal' learns. Use a TextEnv, or another scorer.loss."
        )
    labels = [action_label(info[PARSED_ACTION], count) for info in infos]
    return np.array(labels, np.int64)


def label_column(
    episodes: Sequence[Any], turn_ids: np.ndarray, count: int
) -> np.ndarray:
    """Return the label of the turn of each sampled token, else -1. int64 [B, T]

    Episodes that were not sampled now have none: files and stores keep no infos.

    Args:
        episodes: Episode of each row. [B]
        turn_ids: Turn of each token, -1 for prompts. [B, T]
        count: Number of labels.
    """
    out = np.full(turn_ids.shape, -1, np.int64)
    for row, episode in enumerate(episodes):
        if episode_data(episode).source == SAMPLED:
            labels = labels_of_turns(episode, count)
            out[row] = np.where(turn_ids[row] >= 0, labels[turn_ids[row]], -1)
    return out


@dataclasses.dataclass(frozen=True)
class Replies:
    """The sampled turns of a batch of rows, in host memory, in order of rows.

    Attributes:
        ids: Tokens of each turn, then padding. int64 [N, L]
        labels: Label of its action. int64 [N]
        replies: Number of the turn of each sampled token. int64 [K]
        places: Place of the token in the turn. int64 [K]
        rows: Row of the token. int64 [K]
        cols: Its column. int64 [K]
    """

    ids: np.ndarray
    labels: np.ndarray
    replies: np.ndarray
    places: np.ndarray
    rows: np.ndarray
    cols: np.ndarray

    @classmethod
    def of(cls, batch: Mapping[str, Any], pad_id: int) -> Replies:
        """Return those of a batch with the column ``action_labels``.

        Args:
            batch: Columns of rows.
            pad_id: Id for padding.
        """
        turns = read(batch, columns.TURN_IDS)
        rows, cols = np.nonzero(turns >= 0)
        of_token = turns[rows, cols]
        begins = np.append(True, (np.diff(rows) != 0) | (np.diff(of_token) != 0))
        begins = begins[: len(rows)]
        replies, starts = np.cumsum(begins) - 1, np.flatnonzero(begins)
        places = np.arange(len(rows)) - starts[replies]
        size = (len(starts), int(places.max(initial=-1)) + 1)
        ids = np.full(size, pad_id, np.int64)
        ids[replies, places] = read(batch, columns.INPUT_IDS)[rows, cols]
        labels = read(batch, columns.ACTION_LABELS)[rows[starts], cols[starts]]
        return cls(ids, labels, replies, places, rows, cols)

    def different(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each different turn once: its tokens, its label; and their numbers.

        Returns:
            ids [U, L], labels [U], and the number of each turn among them [N].
        """
        both = np.concatenate([self.labels[:, None], self.ids], axis=1)
        once, number = np.unique(both, axis=0, return_inverse=True)
        return once[:, 1:], once[:, 0], number.reshape(-1)
