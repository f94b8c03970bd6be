"""Sampling within the nucleus of a mask policy, which runs beside the policy.

Keys and values of both models lie in caches with the same rows: what moves or copies a
row of the one does so in the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rllib_llm.engines.model_runner import ModelRunner
from rllib_llm.engines.slot_cache import SlotCache
from rllib_llm.engines.token_sampling import nucleus


class PairedCache(SlotCache):
    """A cache with a second one for the mask policy.

    Attributes:
        mirror: The second cache.
    """

    def __init__(self, max_rows: int, max_length: int, device: torch.device) -> None:
        """Create two empty caches."""
        super().__init__(max_rows, max_length, device)
        self.mirror = SlotCache(max_rows, max_length, device)

    @property
    def num_bytes(self) -> int:
        """Allocated memory of both, in bytes."""
        return super().num_bytes + self.mirror.num_bytes

    def clear(self) -> None:
        """Free all tensors of both."""
        super().clear()
        self.mirror.clear()

    def move(self, sources: list[int], targets: list[int], lengths: list[int]) -> None:
        """Copy rows to other rows in both; see :meth:`SlotCache.move`."""
        super().move(sources, targets, lengths)
        self.mirror.move(sources, targets, lengths)

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        """Copy columns of a row in both; see :meth:`SlotCache.copy_prefix`."""
        super().copy_prefix(source, targets, length)
        self.mirror.copy_prefix(source, targets, length)


class MaskedRunner(ModelRunner):
    """Runs a policy, and excludes the tokens outside of a mask policy's nucleus.

    Args:
        model: The policy.
        mask_policy: A model of the same architecture.
        top_p: Probability of the nucleus, in (0, 1).
        vocabulary: Number of ids that may be sampled, from 0; None: all.
        device: See :class:`ModelRunner`.
        forward: See :class:`ModelRunner`.
    """

    def __init__(
        self,
        model: nn.Module,
        mask_policy: nn.Module,
        top_p: float,
        vocabulary: int | None = None,
        device: torch.device | None = None,
        forward: str = "auto",
    ) -> None:
        """Check both models."""
        self._mask: ModelRunner | None = None  # the checks run the policy alone
        super().__init__(model, device, forward)
        self._mask = ModelRunner(mask_policy, self.device, forward)
        self._top_p, self._vocabulary = top_p, vocabulary
        self.bytes_per_token += self._mask.bytes_per_token

    def refresh(self) -> None:
        """Rebuild the fused forwards after a change of the weights."""
        super().refresh()
        if self._mask is not None:
            self._mask.refresh()

    def forward(self, cache: SlotCache, *args: Any, **kwargs: Any) -> Tensor:
        """Compute logits, -inf outside of the nucleus. [B, V]

        The mask policy's own distribution decides, at temperature 1.

        Args:
            cache: A :class:`PairedCache`.
            args: See :meth:`ModelRunner.forward`.
            kwargs: See :meth:`ModelRunner.forward`.
        """
        logits = super().forward(cache, *args, **kwargs)
        if self._mask is None:
            return logits
        assert isinstance(cache, PairedCache)
        with self._mask.serving():
            masking = self._mask.forward(cache.mirror, *args, **kwargs)
        allowed = nucleus(masking[:, : self._vocabulary], self._top_p)
        logits = logits[:, : self._vocabulary]
        return logits.masked_fill(~allowed, -torch.inf)
