"""Additive attention masks of the slot cache, for full and sliding attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from rllib_llm.engines.served_models import window_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# None: every position attends to every key. Models that mix layer types take a mask per
# type, all others a single mask.
Masks: TypeAlias = Tensor | dict[str, Tensor] | None


class AttentionMasks:
    """Builds the masks of a model's attention layers.

    Args:
        config: The model's config.
        dtype: Data type of the masks.
        device: Their device.

    Attributes:
        window: Width of the sliding window in tokens; None for full attention.
    """

    def __init__(
        self, config: PretrainedConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.window = window_of(config)
        self._device = device
        self._unmasked = torch.zeros((), dtype=dtype, device=device)
        # The least finite number, not -inf: a softmax over a fully masked row of -inf
        # would give NaN.
        self._masked = self._unmasked + torch.finfo(dtype).min
        self._columns = torch.arange(0, device=device)
        layer_types = set(getattr(config, "layer_types", None) or ())
        self._by_type = "sliding_attention" in layer_types

    def of_columns(self, positions: Tensor, visible: int) -> Masks:
        """Build the mask(s) of new tokens over the cache. [B, 1, T, K] each.

        Args:
            positions: Positions of the new tokens. [B, T]
            visible: Columns that attention reads (K).
        """
        if len(self._columns) < visible:
            # In powers of two, so that few steps of a growing batch make new ones.
            count = 1 << (visible - 1).bit_length()
            self._columns = torch.arange(count, device=self._device)
        return self.of_keys(positions, self._columns[:visible])

    def of_keys(self, positions: Tensor, keys: Tensor) -> Masks:
        """Build the mask(s) from positions of queries [B, T] and of keys [K]."""
        queries = positions[:, None, :, None]
        full = keys <= queries
        if self.window is None:
            return self._additive(full)
        window = full & (keys > queries - self.window)
        if not self._by_type:
            return self._additive(window)
        return {
            "full_attention": self._additive(full),
            "sliding_attention": self._additive(window),
        }

    def _additive(self, visible: Tensor) -> Tensor:
        return torch.where(visible, self._unmasked, self._masked)
