"""Cut a batch of rows into micro-batches by a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rllib_llm import columns


def micro_batches(
    batch: Mapping[str, Any], max_tokens: int | None
) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Yield row indices and the sub-batch, sorted by length, padding cut off.

    Args:
        batch: Columns, tensors of [B, ...] or [B, T]; T may be longer than any row.
        max_tokens: Most token positions (rows x longest row) per micro-batch; a single
            longer row forms one alone. None means no limit.

    Yields:
        Indices into the batch [b], and columns cut to these rows and to their longest.
    """
    attention = batch[columns.ATTENTION_MASK]
    length = attention.sum(dim=1)
    if columns.BOOTSTRAP_COLUMN in batch:  # its column lies one past the last token
        length = torch.maximum(length, batch[columns.BOOTSTRAP_COLUMN] + 1)
    order = torch.argsort(length, stable=True)
    lengths = length[order].tolist()
    width = attention.shape[1]
    start = 0
    for end in range(1, len(lengths) + 1):
        full = end == len(lengths) or (
            max_tokens is not None and (end + 1 - start) * lengths[end] > max_tokens
        )
        if full:
            index, longest = order[start:end], lengths[end - 1]
            yield index, {k: _cut(v, index, width, longest) for k, v in batch.items()}
            start = end


def _cut(value: Any, index: torch.Tensor, width: int, longest: int) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    rows = value[index]
    return rows[:, :longest] if value.ndim > 1 and value.shape[1] == width else rows
