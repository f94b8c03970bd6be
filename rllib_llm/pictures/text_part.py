"""The text part of a vision-language model, with its output layer."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from rllib_llm.pictures.features import text_trunk


class TextPart(nn.Module):
    """A vision-language model without tower and projector, as engines run it.

    It has the same modules, so that a change of the weights changes both.

    Args:
        lm: The vision-language model, whose logits are its output layer's.

    Attributes:
        model: Layers that compute hidden states.
        lm_head: The output layer.
        config: Config of the layers.
    """

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        trunk: Any = text_trunk(lm)
        self.model, self.lm_head = trunk, lm.get_output_embeddings()
        self.config = trunk.config
        # Facts of the architecture, which transformers keeps as attributes of models.
        self._is_stateful = bool(getattr(trunk, "_is_stateful", False))
        self._supports_sdpa = bool(getattr(trunk, "_supports_sdpa", False))
        self.eval()

    def get_input_embeddings(self) -> nn.Module:
        """Return the layer that embeds token ids."""
        layer: nn.Module = self.model.get_input_embeddings()
        return layer

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer."""
        return self.lm_head

    def forward(self, **inputs: Any) -> CausalLMOutput:
        """Return the logits of every position. [B, T, V]

        Args:
            **inputs: Inputs of the layers, as of any model of transformers.
        """
        hidden = self.model(**inputs).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden))
