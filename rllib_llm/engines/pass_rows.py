"""Tokens of a forward pass: without padding, and in padded rows for attention.

Everything but attention is computed token by token. Attention needs rows, and the rows
of a pass may have one new token or a whole prompt. On CPUs padded rows cost time, so a
batch is cut into two parts there: the first tokens of all rows, and what long rows have
beyond them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from rllib_llm.engines.attention import slot_attention_forward
from rllib_llm.engines.attention_masks import Masks
from rllib_llm.engines.slot_cache import new_columns
from rllib_llm.upload import upload

# Costs of a second part, in units of one row's attention with one more token: copies of
# a long row's keys and values, and more calls. A quarter of them is as fast.
_ROW_COST, _PART_COST = 24, 80

BuildMasks = Callable[[Tensor], Masks]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Rows of similar length, padded.

    Attributes:
        rows: Its rows of the batch; None: all. int64 [b]
        width: Tokens of a row (T).
        gather: Token at each place of the rows; padding repeats another. int64 [b * T]
        masks: Additive masks [b, 1, T, K]; None: causal attention.
    """

    rows: Tensor | None
    width: int
    gather: Tensor | None
    masks: Masks

    def attend(
        self, query: Tensor, cached: tuple[Tensor, Tensor], module: nn.Module, kind: str
    ) -> Tensor:
        """Return the attended values of all places. [b * T, heads * head_dim]"""
        if self.gather is not None:
            query = query.index_select(0, self.gather)
        query = query.unflatten(0, (-1, self.width)).transpose(1, 2)
        # Not by indexing, which is slower than index_select on CPUs.
        keys, values = cached
        if self.rows is not None:
            keys, values = (x.index_select(0, self.rows) for x in cached)
        masks = self.masks[kind] if isinstance(self.masks, dict) else self.masks
        out, _ = slot_attention_forward(
            module, query, keys, values, masks, scaling=module.scaling
        )
        return out.reshape(query.shape[0] * self.width, -1)


class PassRows:
    """The N new tokens of a batch of rows, row by row.

    Args:
        starts: Tokens that each row has before them. int64 [B]
        counts: New tokens of each row, N in total. int64 [B]
        device: Device of the indices.
        build_masks: Returns the masks of new tokens by their columns [b, T]; None:
            attention is causal, which suits rows without earlier tokens.
    """

    def __init__(
        self,
        starts: np.ndarray,
        counts: np.ndarray,
        device: torch.device,
        build_masks: BuildMasks | None,
    ) -> None:
        """Cut the rows into parts and send their indices to the device."""
        widths = [int(counts.max())]
        if device.type == "cpu" and build_masks is not None:
            widths = part_widths(counts)
        is_padded = len(widths) > 1 or not (counts == widths[0]).all()
        firsts = np.cumsum(counts) - counts
        places, num_places = np.zeros(counts.sum(), np.int64), 0
        self._parts: list[_Part] = []
        for index, width in enumerate(widths):
            rows = np.flatnonzero(counts > 0) if index else np.arange(len(counts))
            used = np.minimum(counts[rows], width)
            columns = new_columns(np.zeros_like(used), used)  # [b, T]
            # A row without tokens at the end has no token to repeat.
            gather = np.minimum(firsts[rows, None] + columns, len(places) - 1)
            is_real = np.arange(width) < used[:, None]
            places[gather[is_real]] = num_places + np.flatnonzero(is_real)
            num_places += is_real.size
            masks: Masks = None
            if build_masks is not None:
                masks = build_masks(upload(starts[rows, None] + columns, device))
            self._parts.append(
                _Part(
                    upload(rows, device) if index else None,
                    width,
                    upload(gather.ravel(), device) if is_padded else None,
                    masks,
                )
            )
            starts, counts, firsts = starts + width, counts - width, firsts + width
        # Places of the tokens among those of all parts. [N]
        self._places = upload(places, device) if is_padded else None

    def attend(
        self, query: Tensor, cached: tuple[Tensor, Tensor], module: nn.Module, kind: str
    ) -> Tensor:
        """Return the attended values. [N, heads * head_dim]

        Args:
            query: Rotated queries. [N, heads, head_dim]
            cached: Keys and values of the batch's rows, new ones included.
                [B, kv_heads, K, head_dim] each
            module: The attention layer.
            kind: Its type, for models with a mask per type.
        """
        parts = [part.attend(query, cached, module, kind) for part in self._parts]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self._places is None:
            return attended
        return attended.index_select(0, self._places)


def part_widths(counts: np.ndarray) -> list[int]:
    """Return the widths of one or two parts, whichever cost less.

    Args:
        counts: New tokens of each row. int64 [B]
    """
    widest = int(counts.max())
    widths = np.arange(1, widest)
    num_longer = (counts[:, None] > widths).sum(0)
    costs = len(counts) * widths + num_longer * (_ROW_COST + widest - widths)
    if not len(widths) or costs.min() + _PART_COST >= len(counts) * widest:
        return [widest]
    first = int(widths[costs.argmin()])
    return [first, widest - first]
