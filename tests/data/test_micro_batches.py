"""Micro-batches: every row once, within the budget, at the least cost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data import micro_batches as module
from rllib_llm.data.micro_batches import cuts, micro_batches


def cost(lengths, ends, max_tokens):
    """Positions and passes of a partition; infinite beyond the budget."""
    total, start = 0, 0
    for end in ends:
        tokens = (end - start) * lengths[end - 1]
        if max_tokens is not None and end - start > 1 and tokens > max_tokens:
            return np.inf
        total += tokens + module._PASS_TOKENS
        start = end
    return total


@pytest.mark.parametrize("max_tokens", [None, 100, 900])
@pytest.mark.parametrize("seed", range(5))
def test_the_partition_is_the_cheapest(seed, max_tokens):
    lengths = np.sort(np.random.default_rng(seed).integers(1, 700, size=8))
    every = (
        [*inner, 8]
        for count in range(8)
        for inner in itertools.combinations(range(1, 8), count)
    )
    least = min(cost(lengths, ends, max_tokens) for ends in every)
    assert cost(lengths, cuts(lengths, max_tokens), max_tokens) == least < np.inf


def test_equal_rows_are_padded_by_nothing_and_share_passes():
    assert cuts(np.full(64, 100), 3200) == [32, 64]
    assert cuts(np.full(64, 100), None) == [64]


def test_rows_are_cut_to_the_longest_of_their_part():
    lengths = torch.tensor([5, 900, 4, 880])
    attention = torch.arange(1000)[None] < lengths[:, None]
    batch = {
        columns.ATTENTION_MASK: attention,
        Columns.LOSS_MASK: attention,
        columns.EPISODE_INDEX: torch.arange(4),
    }
    found = list(micro_batches(batch, None))
    assert [index.tolist() for index, _ in found] == [[2, 0], [3, 1]]
    assert [part[Columns.LOSS_MASK].shape for _, part in found] == [(2, 5), (2, 900)]
    assert [part[columns.EPISODE_INDEX].tolist() for _, part in found] == [
        [2, 0],
        [3, 1],
    ]


def test_the_column_of_the_bootstrap_value_is_not_cut_off():
    lengths = torch.tensor([5, 900, 4])
    attention = torch.arange(1000)[None] < lengths[:, None]
    batch = {
        columns.ATTENTION_MASK: attention,
        columns.BOOTSTRAP_COLUMN: torch.tensor([5, -1, -1]),
    }
    (_, short), (_, long) = micro_batches(batch, None)
    assert short[columns.ATTENTION_MASK].shape == (2, 6)
    assert long[columns.ATTENTION_MASK].shape == (1, 900)


@pytest.mark.parametrize("max_tokens", [None, 40, 300, 2000])
@pytest.mark.parametrize("seed", range(5))
def test_rows_that_belong_together_are_never_parted(seed, max_tokens):
    rng = np.random.default_rng(seed)
    owners = torch.as_tensor(rng.integers(0, 6, size=14))
    lengths = torch.as_tensor(rng.integers(1, 60, size=14))
    attention = torch.arange(60)[None] < lengths[:, None]
    batch = {columns.ATTENTION_MASK: attention, columns.EPISODE_INDEX: owners}
    found = list(micro_batches(batch, max_tokens, together=owners))
    assert sorted(torch.cat([i for i, _ in found]).tolist()) == list(range(14))
    seen = [set(part[columns.EPISODE_INDEX].tolist()) for _, part in found]
    assert sum(map(len, seen)) == len(set().union(*seen))
    for index, part in found:
        longest = int(lengths[index].max())
        assert part[columns.ATTENTION_MASK].shape[1] == longest
        is_over = max_tokens is not None and len(index) * longest > max_tokens
        assert not is_over or len(part[columns.EPISODE_INDEX].unique()) == 1


def test_rows_apart_are_cut_as_before():
    lengths = np.sort(np.random.default_rng(0).integers(1, 700, size=12))
    alone = np.arange(12)[::-1].copy()
    assert cuts(lengths, 900, alone) == cuts(lengths, 900)
    assert cuts(lengths, 1, np.zeros(12, np.int64)) == [12]
