"""Features of pictures in the places of their placeholders."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from torch import Tensor

from rllib_llm.upload import upload


@dataclasses.dataclass(frozen=True)
class PlacedFeatures:
    """Features of the placeholders of a batch, in order of row and column.

    Attributes:
        rows: Row of each placeholder. int64 [N]
        columns: Column of each placeholder. int64 [N]
        features: The vectors that replace their embeddings, then those of deeper layers
            if the family has any. [N, (1 + layers) * hidden]
    """

    rows: np.ndarray
    columns: np.ndarray
    features: Tensor

    def inputs(self, embeddings: Tensor) -> dict[str, Any]:
        """Return the inputs of a text part in place of token ids.

        Args:
            embeddings: Embeddings of the token ids. [B, T, hidden]

        Returns:
            ``inputs_embeds`` [B, T, hidden]. With features of deeper layers also
            ``visual_pos_masks`` [B, T], true at placeholders, and
            ``deepstack_visual_embeds``, what each of the first layers adds to its
            output there: a list of [N, hidden]. The names are transformers'.
        """
        device = embeddings.device
        where = upload(np.stack((self.rows, self.columns)), device)
        parts = self.features.to(embeddings.dtype).split(embeddings.shape[-1], dim=-1)
        first, *deeper = parts
        placed = embeddings.index_put((where[0], where[1]), first)
        inputs: dict[str, Any] = {"inputs_embeds": placed}
        if deeper:
            is_placeholder = np.zeros(embeddings.shape[:2], bool)
            is_placeholder[self.rows, self.columns] = True
            inputs["visual_pos_masks"] = upload(is_placeholder, device)
            inputs["deepstack_visual_embeds"] = deeper
        return inputs
