"""Tokens in padded rows for attention, in one or two parts."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rllib_llm.engines import pass_rows
from rllib_llm.engines.attention_masks import AttentionMasks
from rllib_llm.engines.pass_rows import PassRows, part_widths

HEADS, KV_HEADS, DIM, COLUMNS = 4, 2, 8, 40
CPU = torch.device("cpu")


def expected(query, keys, values, starts, counts, window):
    """Attend token by token."""
    out, token = [], 0
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for column in range(start, start + count):
            first = 0 if window is None else max(0, column - window + 1)
            seen = slice(first, column + 1)
            for head in range(HEADS):
                group = head * KV_HEADS // HEADS
                scores = keys[row, group, seen] @ query[token, head] * DIM**-0.5
                out.append(scores.softmax(0) @ values[row, group, seen])
            token += 1
    return torch.stack(out).view(token, HEADS * DIM)


def attend(query, cached, starts, counts, window=None, is_masked=True):
    config = SimpleNamespace(sliding_window=window, layer_types=None)
    masks = AttentionMasks(config, torch.float64, CPU)
    build = functools.partial(masks.of_columns, visible=cached[0].shape[2])
    rows = PassRows(starts, counts, CPU, build if is_masked else None)
    module = SimpleNamespace(scaling=DIM**-0.5)
    return rows.attend(query, cached, module, ""), len(rows._parts)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(
    ("starts", "counts", "num_parts"),
    [
        ([5, 9, 3], [1, 1, 1], 1),
        ([5, 9, 3], [4, 4, 4], 1),
        ([5, 9, 3], [2, 5, 1], 1),
        ([5, 0, 3, 0], [2, 0, 1, 0], 1),
        ([0, 5, 0, 9], [0, 3, 0, 1], 1),
        ([5, 0, 3, 7, 2, 1], [1, 0, 21, 1, 2, 20], 2),
        ([5, 0, 3, 7], [30, 0, 1, 0], 2),
    ],
)
def test_attention_is_that_of_each_token_alone(
    monkeypatch, starts, counts, num_parts, window
):
    monkeypatch.setattr(pass_rows, "_ROW_COST", 2)
    monkeypatch.setattr(pass_rows, "_PART_COST", 5)
    starts, counts = np.array(starts), np.array(counts)
    query = torch.randn(counts.sum(), HEADS, DIM, dtype=torch.float64)
    shape = len(counts), KV_HEADS, COLUMNS, DIM
    cached = tuple(torch.randn(2, *shape, dtype=torch.float64))
    found, parts = attend(query, cached, starts, counts, window)
    wanted = expected(query, *cached, starts.tolist(), counts.tolist(), window)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0.0)
    assert parts == num_parts


def test_fresh_rows_need_no_mask():
    starts, counts = np.zeros(3, np.int64), np.array([5, 2, 30])
    query = torch.randn(counts.sum(), HEADS, DIM, dtype=torch.float64)
    cached = tuple(torch.randn(2, 3, KV_HEADS, 30, DIM, dtype=torch.float64))
    found, parts = attend(query, cached, starts, counts, is_masked=False)
    wanted = expected(query, *cached, starts.tolist(), counts.tolist(), None)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0.0)
    assert parts == 1


def test_parts_have_the_least_places_that_are_worth_more_calls():
    assert part_widths(np.array([7] * 64)) == [7]
    assert part_widths(np.array([1] * 64)) == [1]
    assert part_widths(np.array([1] * 60 + [30] * 4)) == [1, 29]
    assert part_widths(np.array([5] * 40 + [30] * 24)) == [5, 25]
    assert part_widths(np.array([5] * 40 + [6] * 24)) == [6]
    assert part_widths(np.array([1, 30])) == [30]
