"""Packed rows: places of tokens, cuts, and positions of a pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import (
    HostColumns,
    micro_batches,
    num_positions,
    packed_cuts,
)
from rllib_llm.data.packed_rows import PackedRows

LENGTHS = (3, 1, 4, 2)


def attention(lengths=LENGTHS, width=4):
    return np.arange(width) < np.array(lengths)[:, None]


def batch(lengths=LENGTHS, width=4, *, with_copies=True, **more):
    arrays = {
        columns.ATTENTION_MASK: attention(lengths, width),
        Columns.LOSS_MASK: attention(lengths, width),
        columns.EPISODE_INDEX: np.arange(len(lengths)),
        **more,
    }
    data = {name: torch.as_tensor(array) for name, array in arrays.items()}
    if with_copies:
        data[columns.HOST] = HostColumns.of(arrays)
    return data


@pytest.mark.parametrize("lengths", [LENGTHS, (4, 4), (2, 0, 3), (1,)])
@pytest.mark.parametrize("width", [4, 5])
def test_tokens_are_packed_in_order_and_come_back(lengths, width):
    packed = PackedRows.of(attention(lengths, width), "cpu")
    values = torch.arange(len(lengths) * width, dtype=torch.float64)
    values = values.view(len(lengths), width) + 1
    expected, positions, places = [], [], {}
    for row, length in enumerate(lengths):
        for col in range(length):
            places[row, col] = len(expected)
            expected.append(float(values[row, col]))
            positions.append(col)
    assert packed.pack(values).tolist() == [expected]
    assert packed.attention_inputs(varlen=False)["position_ids"].tolist() == [positions]
    rows, cols = (torch.tensor(x) for x in zip(*places, strict=True))
    zeros, found = packed.places(rows, cols)
    assert found.tolist() == list(places.values()) and not zeros.any()
    shifted = packed.at_next_column(packed.pack(values), width)
    for row, length in enumerate(lengths):
        for col in range(width):
            is_next = 1 <= col <= length
            wanted = float(values[row, col - 1]) if is_next else 0.0
            assert float(shifted[row, col]) == wanted, (row, col)


def test_boundaries_are_those_of_varlen_kernels():
    packed = PackedRows.of(attention((3, 0, 4, 2)), "cpu")
    inputs = packed.attention_inputs(varlen=True)
    for side in "qk":
        boundaries = inputs[f"cu_seq_lens_{side}"]
        assert boundaries.tolist() == [0, 3, 7, 9]
        assert boundaries.dtype == torch.int32
        assert inputs[f"max_length_{side}"] == 4
    assert set(packed.attention_inputs(varlen=False)) == {"position_ids"}


@pytest.mark.parametrize("max_tokens", [None, 1, 7, 40, 100, 10_000])
@pytest.mark.parametrize("units", [False, True])
def test_every_pass_is_filled_up_to_the_budget(max_tokens, units):
    rng = np.random.default_rng(0)
    num_tokens = rng.integers(1, 30, 50)
    unit = np.sort(rng.integers(0, 20, 50)) if units else np.arange(50)
    ends = packed_cuts(num_tokens, max_tokens, unit if units else None)
    assert ends == sorted(set(ends)) and ends[-1] == 50
    parts = np.split(np.arange(50), ends[:-1])
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        tokens = num_tokens[part].sum()
        if max_tokens is None:
            assert following is None
            continue
        assert tokens <= max_tokens or len(set(unit[part])) == 1
        if following is not None:
            next_unit = unit == unit[following[0]]
            assert unit[part[-1]] != unit[following[0]]
            assert tokens + num_tokens[next_unit].sum() > max_tokens


@pytest.mark.parametrize("with_copies", [False, True])
def test_a_budget_counts_tokens_and_not_padding(with_copies):
    data = batch((1, 2, 3, 10, 4), 10, with_copies=with_copies)
    apart = [part for _, part in micro_batches(data, 10)]
    parts = list(micro_batches(data, 10, packing=True))
    assert len(parts) == 2 < len(apart)
    assert [sorted(index.tolist()) for index, _ in parts] == [[0, 1, 2, 4], [3]]
    first, last = (part for _, part in parts)
    assert first[columns.ATTENTION_MASK].shape == (4, 4)
    assert first[columns.PACKED_ROWS].columns.tolist() == [0, 0, 1, 0, 1, 2, *range(4)]
    # A row alone needs no positions of its own.
    assert columns.PACKED_ROWS not in last
    assert [num_positions(part) for _, part in parts] == [10, 10]
    assert sum(map(num_positions, apart)) > 20


def test_rows_without_padding_are_left_apart():
    ((_, part),) = micro_batches(batch((4, 4, 4)), None, packing=True)
    assert columns.PACKED_ROWS not in part and num_positions(part) == 12
    ((_, part),) = micro_batches(batch(), None)
    assert columns.PACKED_ROWS not in part and num_positions(part) == 16


def test_the_column_of_the_bootstrap_value_is_no_position_of_the_pass():
    data = batch(
        (4, 2), 6, **{columns.BOOTSTRAP_COLUMN: np.array([4, -1], dtype=np.int64)}
    )
    ((index, part),) = micro_batches(data, 6, packing=True)
    assert index.tolist() == [1, 0]
    assert part[columns.ATTENTION_MASK].shape == (2, 5)
    assert num_positions(part) == 6
    packed = part[columns.PACKED_ROWS]
    values = torch.arange(1.0, 7.0)[None]
    assert packed.at_next_column(values, 5).tolist() == [
        [0, 1, 2, 0, 0],
        [0, 3, 4, 5, 6],
    ]


def test_rows_that_belong_together_share_a_pass():
    data = batch((1, 3, 2, 4, 3, 1))
    together = np.array([0, 0, 1, 1, 2, 2])
    parts = micro_batches(data, 6, together=together, packing=True)
    rows = [sorted(index.tolist()) for index, _ in parts]
    assert rows == [[0, 1], [2, 3], [4, 5]] or rows == [[0, 1], [4, 5], [2, 3]]
