"""Critic as a separate RLModule, for policies that share one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override

from rllib_llm.data import columns
from rllib_llm.modules.llm_rl_module import LLMRLModule

CRITIC_MODULE = "critic"


class CriticRLModule(LLMRLModule):
    """Computes values of token rows with a language model's trunk and a value head.

    With ``value_head: {detach: True}`` the trunk is frozen and only the head is trained
    (MARFT); otherwise both are trained. The module exists in Learners only.
    """

    @override(LLMRLModule)
    def setup(self) -> None:
        super().setup()
        if self.model_config["value_head"]["detach"]:
            self.lm.requires_grad_(False)

    @override(TorchRLModule)
    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return values before each token under ``values``. [B, T]"""
        # Without embeddings: no policy loss follows that could use them again.
        return {columns.VALUES: self.compute_values(batch), Columns.EMBEDDINGS: None}
