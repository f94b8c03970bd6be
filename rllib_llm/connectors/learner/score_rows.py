"""Second learner connector: log-probabilities and values before the update."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import HostColumns, micro_batches, upload

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule

    from rllib_llm.modules.llm_rl_module import LLMRLModule
    from rllib_llm.types import Device


class ScoreRows(ConnectorV2):
    """Move columns to the device; add old and reference log-probabilities, and values.

    All passes run without gradients and within the token budget.

    Args:
        device: Device of the learner.
        old_logps: ``"learner"`` recomputes them, ``"engine"`` takes the recorded ones.
            The learner sets ``defer_old_logps`` where its only training pass computes
            them; they are then left out.
        values: Policies that have a critic of their own.
        critic: A module that only estimates values, None for none.
        references: Policies that need reference log-probabilities.
        entropies: Policies that need their entropies before the update.
        max_tokens: Token positions per pass.
    """

    def __init__(
        self,
        *,
        device: Device | None,
        old_logps: str,
        values: Collection[str],
        critic: str | None = None,
        references: Collection[str],
        entropies: Collection[str] = (),
        max_tokens: int | None,
    ):
        super().__init__()
        self.device = device
        self.old_logps = old_logps
        self.values = frozenset(values)
        self.critic = critic
        self.references = frozenset(references)
        self.entropies = frozenset(entropies)
        self.max_tokens = max_tokens
        self.defer_old_logps = False

    @override(ConnectorV2)
    def __call__(
        self,
        *,
        rl_module: RLModule | MultiRLModule,
        batch: dict[str, Any],
        episodes: list[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        for module_id, data in batch.items():
            module = rl_module[module_id].unwrapped()
            # On the host: reading ids on the device would wait for it.
            module.check_ids(np.asarray(data[columns.INPUT_IDS]))
            tensors = {
                k: upload(v, self.device) if _is_array(v) else v
                for k, v in data.items()
            }
            tensors[columns.HOST] = HostColumns.of(data)
            if module_id == self.critic:
                self._value(module, tensors)
            else:
                self._score(module_id, module, tensors)
            batch[module_id] = tensors
        return batch

    @torch.no_grad()
    def _value(self, module: LLMRLModule, data: dict[str, Any]) -> None:
        """Add the values of a critic that is a module of its own."""
        values = torch.zeros_like(data[columns.BEHAVIOUR_LOGP])
        for index, part in micro_batches(data, self.max_tokens):
            # Micro-batches are cut to their longest row, so they fill the first columns
            # only.
            width = part[columns.INPUT_IDS].shape[1]
            values[index, :width] = module.compute_values(part).float()
        data[columns.VALUES] = values
        # The learner expects this column in every batch; a critic samples nothing.
        add_old_logps(data, torch.zeros_like(values))

    @torch.no_grad()
    def _score(self, module_id: str, module: LLMRLModule, data: dict[str, Any]) -> None:
        has_values = module_id in self.values
        has_reference = module_id in self.references
        behaviour = data[columns.BEHAVIOUR_LOGP]
        old = behaviour.clone()
        values, reference, entropy = (torch.zeros_like(old) for _ in range(3))
        has_entropy = module_id in self.entropies
        recompute = self.old_logps == "learner" and not self.defer_old_logps
        # Dropout would make old and new log-probabilities differ before any update.
        was_training = module.training
        module.eval()
        if recompute or has_values or has_reference or has_entropy:
            for index, part in micro_batches(data, self.max_tokens):
                width = part[columns.INPUT_IDS].shape[1]
                hidden = None
                if recompute or has_entropy:
                    out = module._forward(part)
                    hidden = out[Columns.EMBEDDINGS]
                    scores = out[Columns.ACTION_DIST_INPUTS]
                    entropy[index, :width] = scores[..., 1]
                    if recompute:
                        old[index, :width] = scores[..., 0]
                # The hidden states of the pass above, if there was one, spare a second
                # pass.
                if has_values:
                    estimates = module.compute_values(part, embeddings=hidden)
                    values[index, :width] = estimates.float()
                if has_reference:
                    reference[index, :width] = module.reference_logps(part)
        module.train(was_training)
        if not self.defer_old_logps:
            add_old_logps(data, old)
        data[Columns.ACTIONS] = data[columns.INPUT_IDS]
        if has_values:
            data[columns.VALUES] = values
        if has_reference:
            data[columns.REF_LOGP] = reference
        if has_entropy:
            data[columns.TOKEN_ENTROPY] = entropy


def add_old_logps(data: dict[str, Any], old: torch.Tensor) -> None:
    """Add the columns that RLlib's PPO loss reads about the sampling policy. [B, T]"""
    data[Columns.ACTION_LOGP] = old
    # Entropy 0: RLlib's PPO loss does not read that of the old policy.
    data[Columns.ACTION_DIST_INPUTS] = torch.stack([old, torch.zeros_like(old)], dim=-1)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)
