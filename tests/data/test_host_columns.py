"""Copies of columns in host memory follow the columns."""

from __future__ import annotations

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import (
    HostColumns,
    count,
    keep,
    micro_batches,
    read,
    trained_places,
)


def batch(with_copies=True):
    """Return four rows of lengths 3, 1, 4 and 2."""
    attention = np.arange(4) < np.array([3, 1, 4, 2])[:, None]
    arrays = {
        columns.ATTENTION_MASK: attention,
        Columns.LOSS_MASK: attention & (np.arange(4) % 2 == 1),
        columns.EPISODE_INDEX: np.array([0, 1, 1, 2]),
    }
    data = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    if with_copies:
        data[columns.HOST] = HostColumns.of(arrays)
    return data


def test_micro_batches_cut_the_copies_like_the_columns():
    names = (columns.ATTENTION_MASK, Columns.LOSS_MASK, columns.EPISODE_INDEX)
    parts = [part for _, part in micro_batches(batch(), 8)]
    assert len(parts) > 1
    for part in parts:
        for name in names:
            np.testing.assert_array_equal(part[columns.HOST].arrays[name], part[name])


def test_units_stay_together_with_copies_and_without():
    for with_copies in (True, False):
        data = batch(with_copies)
        together = read(data, columns.EPISODE_INDEX)
        rows = [i.tolist() for i, _ in micro_batches(data, 4, together=together)]
        assert [1, 2] in [sorted(part) for part in rows]


def test_counts_and_places_are_those_of_the_mask():
    for data in (batch(), batch(with_copies=False)):
        mask = data[Columns.LOSS_MASK]
        assert count(data) == int(mask.sum()) == 4
        found, expected = trained_places(data), mask.nonzero(as_tuple=True)
        assert all(map(torch.equal, found, expected))


def test_a_kept_column_is_read_and_changes_no_other_batch():
    first = batch()
    second = dict(first)
    keep(second, Columns.LOSS_MASK, np.zeros((4, 4), bool))
    assert count(second) == 0 and count(first) == 4
