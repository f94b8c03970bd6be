"""RLModule of a reward model: a language model's trunk with a head for scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override
from torch import nn

from rllib_llm.data import columns
from rllib_llm.data.turn_ends import TurnEnds
from rllib_llm.modules.export import merge_lora
from rllib_llm.modules.llm_rl_module import LLMRLModule
from rllib_llm.upload import upload


def freeze_output(lm: nn.Module) -> None:
    """Freeze what scores do not read of a language model: all but its trunk."""
    trained = {id(p) for p in lm.base_model.parameters()}
    for parameter in lm.parameters():
        if id(parameter) not in trained:
            parameter.requires_grad_(False)


class RewardRLModule(LLMRLModule):
    """Scores turns by the hidden state of their last token.

    With ``value_model: own`` the scores have a trunk of their own, and the policy,
    which samples the episodes to compare, is frozen.

    Attributes:
        score_stats: Mean and standard deviation of the episodes' scores in the last
            update; NaN before it. [2]
    """

    @override(LLMRLModule)
    def setup(self) -> None:
        super().setup()
        self.register_buffer("score_stats", torch.full((2,), float("nan")))
        if self.inference_only:
            return
        if self.value_head.trunk is not None:
            self.lm.requires_grad_(False)
        freeze_output(self.lm)

    @property
    def trunk(self) -> nn.Module:
        """The layers below the scores; under LoRA with the adapters merged."""
        if self.value_head.trunk is not None:
            return self.value_head.trunk
        lm = merge_lora(self.lm) if self.model_config["lora"] else self.lm
        return lm.base_model

    @override(TorchRLModule)
    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the score of every turn, in the order of :class:`TurnEnds`. [M]"""
        ends, device = TurnEnds.of(batch), batch[columns.INPUT_IDS].device
        rows, cols = upload(np.stack([ends.rows, ends.cols]), device)
        packed = batch.get(columns.PACKED_ROWS)
        where = (rows, cols) if packed is None else packed.places(rows, cols)
        with self._autocast(device):
            hidden = self._row_hidden(
                self.value_head.trunk or self.lm.base_model, batch
            )
        return {
            columns.SCORES: self.value_head(hidden[where]),
            Columns.EMBEDDINGS: None,
        }

    @torch.no_grad()
    def score_of(self, ids: Sequence[int]) -> float:
        """Return the score of a conversation by its token ids."""
        rows = torch.tensor([list(ids)], device=self.value_head.out.weight.device)
        trunk = self.value_head.trunk or self.lm.base_model
        hidden = trunk(input_ids=rows, use_cache=False).last_hidden_state
        return float(self.value_head(hidden[:, -1]))

    @override(LLMRLModule)
    def save_model(self, folder: str | Path, *, merged: bool = True) -> None:
        """Write the reward model as a sequence classifier of transformers.

        Args:
            folder: Target folder.
            merged: True; a classifier has no adapter file.

        Raises:
            ConfigError: ``merged`` is False.
        """
        from rllib_llm.modules.classifiers import save_classifier

        save_classifier(self, Path(folder), merged=merged)
