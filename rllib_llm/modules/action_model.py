"""RLModule of a small bidirectional model that predicts a reply's parsed action."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override
from torch import Tensor, nn

from rllib_llm.data import columns
from rllib_llm.modules.checkpointed_module import CheckpointedModule

WIDTH, LAYERS, HEADS = 64, 2, 4


class ActionModel(nn.Module):
    """Transformer encoder over the tokens of a reply, with one logit per action.

    It starts with equal logits. The embedding of :attr:`null_id` is 0 and is not
    trained: the token is both padding and what replaces masked tokens.

    Args:
        num_tokens: Number of the tokenizer's ids.
        num_actions: Number of labels of actions.
    """

    def __init__(self, num_tokens: int, num_actions: int):
        super().__init__()
        self.null_id = num_tokens
        self.embedding = nn.Embedding(num_tokens + 1, WIDTH, padding_idx=self.null_id)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.out = nn.Linear(WIDTH, num_actions)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, ids: Tensor, is_token: Tensor) -> Tensor:
        """Return the logits of actions. [N, A]

        Args:
            ids: Tokens of replies; masked ones are ``null_id``. int64 [N, L]
            is_token: False for padding. bool [N, L]
        """
        embedded = self.embedding(ids)
        embedded = embedded + positions(ids.shape[1], WIDTH).to(embedded)
        hidden = self.encoder(embedded, src_key_padding_mask=~is_token)
        weights = is_token.unsqueeze(-1).to(hidden.dtype)
        return self.out((hidden * weights).sum(dim=1) / weights.sum(dim=1))


def positions(length: int, width: int) -> Tensor:
    """Return sinusoidal position embeddings (Vaswani et al. 2017, section 3.5). [L, W]

    They have no largest length.
    """
    place = torch.arange(length, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    out = torch.zeros(length, width)
    out[:, 0::2], out[:, 1::2] = torch.sin(place * rates), torch.cos(place * rates)
    return out


class ActionRLModule(CheckpointedModule):
    """Holds an :class:`ActionModel`; it exists in Learners only.

    ``model_config`` keys: ``vocabulary``, ``num_actions`` and ``init_seed``.
    """

    @override(RLModule)
    def setup(self) -> None:
        """Build the model, with the same weights in all processes."""
        self._reference = self._mask_policy = ()
        self.model_config = {**self.model_config, "lora": None}
        with torch.random.fork_rng():
            torch.manual_seed(self.model_config["init_seed"])
            self.model = ActionModel(
                self.model_config["vocabulary"], self.model_config["num_actions"]
            )

    @override(TorchRLModule)
    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the logits of replies. [N, A]

        Args:
            batch: Tokens of replies ``input_ids`` and their ``attention_mask``. [N, L]
            kwargs: Not used.
        """
        logits = self.model(batch[columns.INPUT_IDS], batch[columns.ATTENTION_MASK])
        return {Columns.ACTION_DIST_INPUTS: logits}

    @override(CheckpointedModule)
    def save_model_files(self, folder: Path) -> None:
        """Write nothing: the tokens are the policy's."""
