"""Key-value cache with one row per conversation and rows of different lengths.

transformers' models accept any object with ``update`` and ``get_seq_length`` as their
cache. This one lets rows of different lengths share a forward pass: new keys and
values are written after each row's old ones (right padding, no copies), and attention
reads a view of the batch's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_llm.upload import upload

_VIEW_BLOCK = 8  # attention is slower at lengths that are not a multiple of this
_GROW_BLOCK = 32  # columns are allocated in multiples of this; gaps slow down reading


def round_up(value: int, block: int) -> int:
    """Return the smallest multiple of ``block`` that is at least ``value``."""
    return -(-value // block) * block


def row_length(max_length: int) -> int:
    """Return the maximum columns of a row of at most ``max_length`` tokens."""
    return round_up(max_length, _VIEW_BLOCK)


def new_columns(starts: np.ndarray, counts: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the columns of new tokens. int64 [B, T]

    Padding repeats the last one: larger ones might exceed a table of positions.

    Args:
        starts: Tokens that each row has already. int64 [B]
        counts: New tokens of each row; the largest is T. [B]
    """
    last = np.maximum(np.asarray(counts)[:, None] - 1, 0)
    return starts[:, None] + np.minimum(np.arange(last.max() + 1), last)


class SlotCache:
    """Keys and values of many conversations, one row per conversation.

    Each layer has one tensor [2, rows, kv_heads, columns, head_dim]: keys, then values.
    Heads come before columns because attention then reads contiguous memory, which
    makes decoding about twice as fast on CPUs. Rows and columns grow on demand. Values
    beyond a row's length are stale but finite, and the attention mask hides them.

    Args:
        max_rows: Maximum number of rows.
        max_length: Maximum number of tokens in a row.
        device: Device of the tensors.

    Attributes:
        visible: Columns that attention reads in the current forward pass.
        real: Places of its tokens in the padded batch; None without padding. int64 [N]
    """

    def __init__(self, max_rows: int, max_length: int, device: torch.device) -> None:
        """Create an empty cache; the first forward pass allocates the tensors."""
        self._max_rows = max_rows
        self._max_columns = row_length(max_length)
        self._device = device
        self._rows = 0
        self._columns = 0
        self._stores: dict[int, Tensor] = {}
        self._first_row = 0
        self._batch = 0
        self.visible = 0
        self._target: tuple[Tensor, Tensor] | None = None  # rows and columns, [N] each
        self._vectors: dict[int, Tensor] = {}  # the same, by number of heads
        self.real: Tensor | None = None
        self._row_ids: Tensor | None = None  # 0, 1, 2, ... on the device

    @property
    def num_bytes(self) -> int:
        """Allocated memory, in bytes."""
        return sum(t.numel() * t.element_size() for t in self._stores.values())

    @property
    def bytes_per_token(self) -> int:
        """Memory per token and row, in bytes; 0 before the first forward."""
        return self.num_bytes // max(self._rows * self._columns, 1)

    def clear(self) -> None:
        """Free all tensors."""
        self._stores.clear()
        self._rows = self._columns = 0

    def prepare(
        self,
        first_row: int,
        starts: np.ndarray,
        counts: np.ndarray,
        *,
        is_exact: bool = False,
    ) -> int:
        """Set the target of the next forward pass's writes; call it before each pass.

        Row ``i`` of the batch is row ``first_row + i`` of the cache.

        Args:
            first_row: First row of the batch.
            starts: Tokens already stored in each row. int64 [B]
            counts: New tokens of each row, 0 for rows that only lie between others;
                the batch is padded on the right to the largest. int64 [B]
            is_exact: Limit the view to the longest row, so that causal attention needs
                no mask.

        Returns:
            The number of columns that attention reads (K).
        """
        batch, width = len(starts), int(counts.max())
        needed = int((starts + counts).max())
        self._reserve(first_row + batch, needed)
        self._first_row, self._batch = first_row, batch
        self._vectors.clear()
        block = 1 if is_exact else _VIEW_BLOCK
        self.visible = min(round_up(needed, block), self._columns)
        self.real = None
        if width == 1 and counts.all():
            if self._row_ids is None:
                self._row_ids = torch.arange(self._max_rows, device=self._device)
            row_ids = self._row_ids[first_row : first_row + batch]
            self._target = (row_ids, upload(starts, self._device))
            return self.visible
        offsets = np.arange(width)
        columns = starts[:, None] + offsets  # [B, T]
        rows = np.broadcast_to(first_row + np.arange(batch)[:, None], columns.shape)
        is_real = offsets < counts[:, None]
        if not is_real.all():
            # Padding is not written: it would overwrite the columns of later tokens.
            self.real = upload(np.flatnonzero(is_real), self._device)
        self._target = (
            upload(rows[is_real], self._device),
            upload(columns[is_real], self._device),
        )
        return self.visible

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values of one layer (called by the model).

        Args:
            keys: New keys. [B, kv_heads, T, head_dim]
            values: New values. [B, kv_heads, T, head_dim]
            layer_idx: Index of the layer.

        Returns:
            All keys and all values of the batch's rows. [B, kv_heads, K, head_dim]
        """
        both = torch.stack((keys, values), 2).permute(0, 3, 2, 1, 4)
        new = both.reshape(-1, *both.shape[2:])
        self.write(new if self.real is None else new[self.real], layer_idx)
        return self.read(layer_idx)

    def write(self, new: Tensor, layer: int) -> None:
        """Store the new keys and values of one layer.

        Args:
            new: Keys and values, without padding. [N, 2, kv_heads, head_dim]
            layer: Index of the layer.
        """
        if layer not in self._stores:
            _, _, heads, dim = new.shape
            size = (2, self._rows, heads, self._columns, dim)
            self._stores[layer] = new.new_zeros(size)
        store = self._stores[layer]
        # Whole vectors are copied, which is faster than indexing by rows and columns.
        store.view(-1, store.shape[-1]).index_copy_(
            0, self._vectors_of(store), new.reshape(-1, store.shape[-1])
        )

    def _vectors_of(self, store: Tensor) -> Tensor:
        """Return the places of the new keys and values among all vectors of a store.

        int64 [N * 2 * kv_heads], in the order of ``write``'s values.
        """
        heads = store.shape[2]
        if heads not in self._vectors:
            assert self._target is not None  # prepare() was called
            row, column = (x[:, None, None] for x in self._target)  # [N, 1, 1]
            parts = torch.arange(2, device=store.device)[:, None] * store.shape[1]
            each = torch.arange(heads, device=store.device)
            places = ((parts + row) * heads + each) * store.shape[3] + column
            self._vectors[heads] = places.flatten()
        return self._vectors[heads]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return all keys and values of the batch's rows.

        Each is a view [B, kv_heads, K, head_dim].
        """
        rows = slice(self._first_row, self._first_row + self._batch)
        return self._stores[layer][:, rows, :, : self.visible].unbind()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions are always passed explicitly."""
        del layer_idx
        return 0

    def move(self, sources: list[int], targets: list[int], lengths: list[int]) -> None:
        """Copy rows to other rows, all at once, so that rows can be swapped.

        Args:
            sources: Rows to read.
            targets: Rows to write, one per source.
            lengths: Number of columns to copy of each.
        """
        if not self._stores:
            return
        self._reserve(max(targets) + 1, max(lengths))
        for store in self._stores.values():
            # Row by row: copies of whole rows are faster than indexing.
            rows = [
                store[:, source, :, :length].clone()
                for source, length in zip(sources, lengths, strict=True)
            ]
            for row, target in zip(rows, targets, strict=True):
                store[:, target, :, : row.shape[2]] = row

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        """Copy the first columns of one row to other rows.

        Args:
            source: Row to read.
            targets: Rows to write, without the source.
            length: Number of columns to copy, at most the source's length.
        """
        self._reserve(max(targets) + 1, length)
        write = torch.tensor(targets, device=self._device)
        for store in self._stores.values():
            part = store[..., :length, :]
            # clone(): torch rejects overlapping memory if the prefix spans whole rows.
            part[:, write] = part[:, source, None].clone()

    def _reserve(self, rows: int, columns: int) -> None:
        """Grow to at least this size, geometrically, so that copies are rare."""
        if rows <= self._rows and columns <= self._columns:
            return
        if rows > self._rows:
            rows = min(max(rows, 2 * self._rows), self._max_rows)
        if columns > self._columns:
            columns = round_up(max(columns, self._columns * 5 // 4), _GROW_BLOCK)
            columns = min(columns, self._max_columns)
        old_rows, old_columns = self._rows, self._columns
        self._rows, self._columns = max(rows, old_rows), max(columns, old_columns)
        for layer, old in self._stores.items():
            _, _, heads, _, dim = old.shape
            new = old.new_zeros(2, self._rows, heads, self._columns, dim)
            new[:, :old_rows, :, :old_columns] = old
            self._stores[layer] = new
