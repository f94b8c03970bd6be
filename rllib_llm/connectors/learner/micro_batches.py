"""Cut a batch of rows into micro-batches by a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from rllib_llm.data import columns
from rllib_llm.data.host_columns import read, upload

# Fixed cost of a forward and backward pass, in tokens. Measured on a CPU with models
# of one million parameters; it is lower for larger models.
_PASS_TOKENS = 256


def micro_batches(
    batch: Mapping[str, Any],
    max_tokens: int | None,
    *,
    together: np.ndarray | None = None,
) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Yield row indices and sub-batches, sorted by length, without excess padding.

    Args:
        batch: Columns, tensors of [B, ...] or [B, T]; T may be longer than any row.
        max_tokens: Most token positions (rows x longest row) per micro-batch; a longer
            row forms one of its own. None means no limit.
        together: Rows with equal numbers stay in one micro-batch, which may then be
            larger; None: rows are independent. [B]

    Yields:
        Indices into the batch [b], and columns cut to these rows and their longest.
    """
    attention = read(batch, columns.ATTENTION_MASK)
    length = attention.sum(axis=1)
    if columns.BOOTSTRAP_COLUMN in batch:  # its column lies one past the last token
        length = np.maximum(length, read(batch, columns.BOOTSTRAP_COLUMN) + 1)
    unit = None
    if together is not None:
        _, which = np.unique(together, return_inverse=True)
        longest_of = np.zeros_like(length)
        np.maximum.at(longest_of, which, length)
        length = longest_of[which]
        # Sorted by length, then by unit: the stable sort keeps a unit's rows adjacent.
        order = np.argsort(which, kind="stable")
        order = order[np.argsort(length[order], kind="stable")]
        unit = which[order]
    else:
        order = np.argsort(length, kind="stable")
    lengths = length[order]
    width = attention.shape[1]
    device = batch[columns.ATTENTION_MASK].device
    on_device, host, start = upload(order, device), batch.get(columns.HOST), 0
    for end in cuts(lengths, max_tokens, unit):
        index, longest = on_device[start:end], int(lengths[end - 1])
        part = {k: _cut(v, index, width, longest) for k, v in batch.items()}
        if host is not None:
            part[columns.HOST] = host.select(order[start:end], longest)
        yield index, part
        start = end


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
    unit = np.arange(count) if unit is None else unit
    starts = np.flatnonzero(np.diff(unit, prepend=-1))  # of every unit
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


def _cut(value: object, index: torch.Tensor, width: int, longest: int) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    rows = value[index]
    return rows[:, :longest] if value.ndim > 1 and value.shape[1] == width else rows
