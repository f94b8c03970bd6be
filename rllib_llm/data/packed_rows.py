"""Packed rows: all tokens of a micro-batch in one row, without padding.

A packed row goes through the layers of a model; its results return to the places of
their tokens in [B, T], where losses, advantages and statistics read them.
``position_ids`` restart at every row, by which transformers keeps the rows apart.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rllib_llm.upload import upload


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Places of the tokens of padded rows [B, T] in a packed row [1, N].

    Attributes:
        rows: Row of each packed token. [N]
        columns: Column of each packed token. [N]
        starts: Place of each row's first token. [B]
        boundaries: Places where rows start, and N; without rows of no token.
            int32 [rows + 1]
        longest: Tokens of the longest row.
        with_next: Packed tokens whose next column is below T. [M]
    """

    rows: Tensor
    columns: Tensor
    starts: Tensor
    boundaries: Tensor
    longest: int
    with_next: Tensor

    @classmethod
    def of(cls, attention: np.ndarray, device: torch.device | str) -> PackedRows:
        """Build them from a mask of real tokens, on the right of which is padding.

        Args:
            attention: bool [B, T], in host memory.
            device: Device of the model.
        """
        rows, cols = np.nonzero(attention)
        lengths = attention.sum(axis=1)
        ends = lengths.cumsum()
        arrays = (
            rows,
            cols,
            ends - lengths,
            np.append(0, ends[lengths > 0]).astype(np.int32),
            np.flatnonzero(cols + 1 < attention.shape[1]),
        )
        of_rows, of_columns, starts, boundaries, with_next = (
            upload(array, device) for array in arrays
        )
        longest = int(lengths.max(initial=0))
        return cls(of_rows, of_columns, starts, boundaries, longest, with_next)

    def pack(self, values: Tensor) -> Tensor:
        """Return the real tokens' values. [B, T] -> [1, N]"""
        return values[self.rows, self.columns][None]

    def places(self, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
        """Return row and column in the packed row of real tokens. 2 x [K]"""
        return torch.zeros_like(rows), self.starts[rows] + cols

    def at_next_column(self, values: Tensor, width: int) -> Tensor:
        """Return values one column right of their tokens, zero elsewhere.

        Args:
            values: One for each packed token. [1, N]
            width: Columns T of the result.

        Returns:
            [B, T]; the value of a token in the last column is left out.
        """
        rows, cols = self.rows[self.with_next], self.columns[self.with_next]
        unpacked = values.new_zeros((len(self.starts), width))
        return unpacked.index_put((rows, cols + 1), values[0, self.with_next])

    def attention_inputs(self, *, varlen: bool) -> dict[str, Any]:
        """Return the keyword arguments that keep the rows apart in transformers.

        Args:
            varlen: Whether to add the boundaries that flash attention's kernels for
                sequences of variable length read. transformers would otherwise find
                them in the positions, in every layer, and the host would wait.
        """
        inputs: dict[str, Any] = {"position_ids": self.columns[None]}
        if varlen:
            inputs |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), self.boundaries)
            inputs |= dict.fromkeys(("max_length_q", "max_length_k"), self.longest)
        return inputs
