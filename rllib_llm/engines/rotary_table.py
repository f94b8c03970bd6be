"""Table of cosines and sines of rotary positions, for the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rllib_llm.engines.slot_cache import round_up

_BLOCK = 512  # the table grows in multiples of this


def has_three_axes(trunk: nn.Module) -> bool:
    """Return whether positions have a time, a row and a column (mrope)."""
    return hasattr(trunk.rotary_emb, "mrope_section")


class RotaryTable:
    """Rotary positions of a trunk whose frequencies do not change with the length.

    Args:
        trunk: Layers of a language model, with ``rotary_emb`` and ``embed_tokens``.
    """

    def __init__(self, trunk: nn.Module) -> None:
        self._trunk: Any = trunk
        self._table: Tensor | None = None  # [P, 2, 1, head_dim]
        self._axes: Tensor | None = None  # of each dimension: 0, 1 or 2 [head_dim]

    def __call__(self, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines of positions. [N, 1, head_dim] each

        Rolling a head by half its size and multiplying by the signed sines equals
        transformers' ``rotate_half`` times the sines.

        Args:
            positions: Positions [N], or time, row and column [3, N].
            longest: Upper limit of the positions.
        """
        if self._table is None or len(self._table) < longest:
            self._grow(longest)
        assert self._table is not None
        if positions.ndim == 1:
            return self._table.index_select(0, positions).unbind(1)
        if self._axes is None:
            self._axes = self._axis_of_each_dimension()
        time, row, column = (self._table.index_select(0, p) for p in positions)
        places = torch.where(self._axes == 1, row, column)
        return torch.where(self._axes == 0, time, places).unbind(1)

    def _grow(self, longest: int) -> None:
        weight = self._trunk.embed_tokens.weight
        places = torch.arange(round_up(longest, _BLOCK), device=weight.device)
        cos, sin = self._trunk.rotary_emb(weight, places[None])  # [1, P, head_dim]
        low, high = sin.chunk(2, dim=-1)
        signed = torch.cat((-low, high), dim=-1)
        table = torch.cat((cos, signed)).transpose(0, 1)[:, :, None]
        self._table = table.contiguous()

    def _axis_of_each_dimension(self) -> Tensor:
        """Find out which of the three positions turns each dimension. [head_dim]"""
        # Families order the dimensions differently. With one position 1 and the others
        # 0, only the sines of its own dimensions are not 0.
        weight = self._trunk.embed_tokens.weight
        probes = torch.eye(3, dtype=torch.int64, device=weight.device)
        _, sin = self._trunk.rotary_emb(weight, probes[:, None])  # [1, 3, head_dim]
        return (sin[0] != 0).int().argmax(0)
