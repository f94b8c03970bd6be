"""Micro-batches of a batch of rows, and copies of its columns in host memory.

Reading a number from an accelerator makes the host wait until all work given to it is
done. Masks and indices are built on the host, so their copies stay there: the Learner
counts tokens and finds their positions in these, and uploads positions without waiting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from rllib_llm.data import columns
from rllib_llm.data.packed_rows import PackedRows
from rllib_llm.upload import upload

NAMES = (
    Columns.LOSS_MASK,
    columns.ATTENTION_MASK,
    columns.TURN_IDS,
    columns.TURN_STEPS,
    columns.EPISODE_INDEX,
    columns.MULTI_AGENT_EPISODE_INDEX,
    columns.AGENT_INDEX,
    columns.BOOTSTRAP_COLUMN,
    columns.BOOTSTRAPS_AGENT_TURN,
    columns.CHOICE_STARTS,
    columns.CANDIDATES,
    columns.SUCCESS,
    columns.SOURCE,
    columns.PICTURE_STARTS,
    columns.PICTURE_INDEX,
)
# Fixed cost of a forward and backward pass, in tokens. Measured on a CPU with models
# of one million parameters; it is lower for larger models.
_PASS_TOKENS = 256


@dataclasses.dataclass
class HostColumns:
    """Columns of a batch in host memory.

    Attributes:
        arrays: The columns by name, [B] or [B, T].
    """

    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> HostColumns:
        """Return the columns of ``data`` whose copies are kept."""
        return cls({n: _array(data[n]) for n in NAMES if n in data})

    def select(self, rows: np.ndarray, end: int | None = None) -> HostColumns:
        """Return these rows, and the first ``end`` columns of [B, T] arrays."""
        return HostColumns(
            {
                name: array[rows, :end] if array.ndim > 1 else array[rows]
                for name, array in self.arrays.items()
            }
        )

    def replace(self, **arrays: np.ndarray) -> HostColumns:
        """Return a copy with other arrays, by name of the column."""
        return HostColumns({**self.arrays, **arrays})


def read(batch: Mapping[str, Any], name: str) -> np.ndarray:
    """Return a column as an array; without a copy, the host waits for the device."""
    host = batch.get(columns.HOST)
    if host is None or name not in host.arrays:
        return _array(batch[name])
    return host.arrays[name]


def keep(batch: dict[str, Any], name: str, array: np.ndarray) -> None:
    """Keep a copy of a new column, which the caller uploads."""
    if columns.HOST in batch:
        batch[columns.HOST] = batch[columns.HOST].replace(**{name: array})


def select_rows(batch: Mapping[str, Any], index: np.ndarray) -> dict[str, Any]:
    """Return the rows with these indices, of all columns."""
    # Uploaded once for all columns.
    on_device = upload(index, batch[Columns.LOSS_MASK].device)
    selected = {
        k: v[on_device] if isinstance(v, Tensor) and v.ndim else v
        for k, v in batch.items()
    }
    if columns.HOST in batch:
        selected[columns.HOST] = batch[columns.HOST].select(index)
    return selected


def count(batch: Mapping[str, Any]) -> int:
    """Return the number of trained tokens."""
    return int(read(batch, Columns.LOSS_MASK).sum())


def count_pictures(batch: Mapping[str, Any] | None) -> int:
    """Return the number of places of pictures in rows; 0 of None."""
    if batch is None or columns.PICTURES not in batch:
        return 0
    return int((read(batch, columns.PICTURE_STARTS) >= 0).sum())


def trained_places(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return row and column of each trained token, on the batch's device. 2 x [N]"""
    mask = batch[Columns.LOSS_MASK]
    return places(read(batch, Columns.LOSS_MASK), mask.device)


def places(mask: np.ndarray, device: torch.device) -> tuple[Tensor, ...]:
    """Return the indices of true entries, in row-major order, one [N] per dimension."""
    return tuple(upload(np.stack(np.nonzero(mask)), device))


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)


def micro_batches(
    batch: Mapping[str, Any],
    max_tokens: int | None,
    *,
    together: np.ndarray | None = None,
    packing: bool = False,
) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Yield row indices and sub-batches, sorted by length, without excess padding.

    Args:
        batch: Columns, tensors of [B, ...] or [B, T]; T may be longer than any row.
        max_tokens: Most token positions (rows x longest row) per micro-batch; a longer
            row forms one of its own. None means no limit.
        together: Rows with equal numbers stay in one micro-batch, which may then be
            larger; None: rows are independent. [B]
        packing: Whether models get the rows of a micro-batch as one, without padding.
            ``max_tokens`` then counts tokens, and patches of pictures, only.

    Yields:
        Indices into the batch [b], and columns cut to these rows and their longest;
        with ``packing`` also a PackedRows, if there is padding.
    """
    attention = read(batch, columns.ATTENTION_MASK)
    num_tokens = length = attention.sum(axis=1)
    if columns.BOOTSTRAP_COLUMN in batch:  # its column lies one past the last token
        length = np.maximum(length, read(batch, columns.BOOTSTRAP_COLUMN) + 1)
    cost, packed_cost = length, num_tokens
    if columns.PICTURES in batch:
        # Patches are positions of the vision tower.
        seen = (read(batch, columns.PICTURE_STARTS) >= 0).sum(axis=1)
        patches = batch[columns.PICTURES].patches * seen
        cost, packed_cost = length + patches, num_tokens + patches
    unit = None
    if together is not None:
        _, which = np.unique(together, return_inverse=True)
        longest_of = np.zeros_like(cost)
        np.maximum.at(longest_of, which, cost)
        cost = longest_of[which]
        # Sorted by length, then by unit: the stable sort keeps a unit's rows adjacent.
        order = np.argsort(which, kind="stable")
        order = order[np.argsort(cost[order], kind="stable")]
        unit = which[order]
    else:
        order = np.argsort(cost, kind="stable")
    lengths = length[order]
    width = attention.shape[1]
    device = batch[columns.ATTENTION_MASK].device
    on_device, host, start = upload(order, device), batch.get(columns.HOST), 0
    if packing:
        ends = packed_cuts(packed_cost[order], max_tokens, unit)
    else:
        ends = cuts(cost[order], max_tokens, unit)
    for end in ends:
        index, longest = on_device[start:end], int(lengths[start:end].max())
        part = {k: _cut(v, index, width, longest) for k, v in batch.items()}
        if host is not None:
            part[columns.HOST] = host.select(order[start:end], longest)
        real = attention[order[start:end], :longest]
        # Rows without padding are as well apart as they are, and need no mask.
        if packing and not real.all():
            part[columns.PACKED_ROWS] = PackedRows.of(real, device)
        yield index, part
        start = end


def idle_rows(device: torch.device | str) -> dict[str, Any]:
    """Return a row of two tokens for a pass that only keeps other Learners company."""
    ids = torch.zeros((1, 2), dtype=torch.long, device=device)
    mask = np.array([[False, True]])
    batch = {
        columns.INPUT_IDS: ids,
        columns.ATTENTION_MASK: torch.ones_like(ids, dtype=torch.bool),
        Columns.LOSS_MASK: upload(mask, device),
    }
    return {**batch, columns.HOST: HostColumns({Columns.LOSS_MASK: mask})}


def cuts(
    lengths: np.ndarray, max_tokens: int | None, unit: np.ndarray | None = None
) -> list[int]:
    """Return the cuts of sorted rows that minimise the cost of padding and passes.

    A pass over rows ``i`` to ``j`` costs ``(j - i) * lengths[j - 1]`` positions plus
    ``_PASS_TOKENS``; dynamic programming finds the cheapest partition.

    Args:
        lengths: Row lengths, ascending. [B]
        max_tokens: Most positions of a pass of several units; None means no limit.
        unit: Neighbours with equal numbers stay together; None: each row is a unit. [B]

    Returns:
        The end of every part, ascending; the last one is B.
    """
    count = len(lengths)
    starts = _unit_starts(count, unit)
    # best[k]: least cost of the first k rows; begin[k]: first row of their last part.
    best, begin = np.zeros(count + 1), np.zeros(count + 1, np.int64)
    best[1:] = np.inf
    for start, end in zip(starts, np.append(starts[1:], count), strict=True):
        tokens = np.arange(end, 0, -1) * lengths[end - 1]  # of parts from 0, 1, ...
        total = best[:end] + tokens + _PASS_TOKENS
        if max_tokens is not None:
            # A part of this unit alone (index start) is allowed at any size.
            total[:start][tokens[:start] > max_tokens] = np.inf
        begin[end] = np.argmin(total)
        best[end] = total[begin[end]]
    ends = [count]
    # Follow the parts back from the last one.
    while begin[ends[-1]]:
        ends.append(int(begin[ends[-1]]))
    return ends[::-1]


def packed_cuts(
    num_tokens: np.ndarray, max_tokens: int | None, unit: np.ndarray | None = None
) -> list[int]:
    """Return the cuts of rows that fill each pass with as many tokens as allowed.

    Args:
        num_tokens: Tokens of each row. [B]
        max_tokens: Most tokens of a pass of several units; None means no limit.
        unit: Neighbours with equal numbers stay together; None: each row is a unit. [B]

    Returns:
        The end of every part, ascending; the last one is B.
    """
    count = len(num_tokens)
    starts = _unit_starts(count, unit)
    sums = np.add.reduceat(num_tokens, starts) if count else ()
    ends, filled = [], 0
    for start, tokens in zip(starts, sums, strict=True):
        if max_tokens is not None and filled and filled + tokens > max_tokens:
            ends.append(int(start))
            filled = 0
        filled += int(tokens)
    return [*ends, count]


def _unit_starts(count: int, unit: np.ndarray | None) -> np.ndarray:
    """Return the first row of every unit; None: each row is a unit."""
    unit = np.arange(count) if unit is None else unit
    return np.flatnonzero(np.diff(unit, prepend=-1))


def num_positions(batch: Mapping[str, Any]) -> int:
    """Return the positions of a forward pass, with the padding that it computes."""
    real = read(batch, columns.ATTENTION_MASK)
    return int(real.sum()) if columns.PACKED_ROWS in batch else real.size


def _cut(value: object, index: torch.Tensor, width: int, longest: int) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    rows = value[index]
    return rows[:, :longest] if value.ndim > 1 and value.shape[1] == width else rows
