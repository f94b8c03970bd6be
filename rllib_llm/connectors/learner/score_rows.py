"""Second learner connector: log-probabilities and values before the update."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.data import columns
from rllib_llm.data.micro_batches import (
    HostColumns,
    idle_rows,
    micro_batches,
)
from rllib_llm.distributed import equal_passes
from rllib_llm.upload import upload

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
        choice_references: Those of them that need these of all admissible actions.
        entropies: Policies that need their entropies before the update.
        max_tokens: Token positions per pass.
        packing: Whether the rows of a pass are packed.
        is_sharded: Whether a pass gathers layers from all Learners, which must then
            make the same passes.
    """

    def __init__(
        self,
        *,
        device: Device | None,
        old_logps: str,
        values: Collection[str],
        critic: str | None = None,
        references: Collection[str],
        choice_references: Collection[str] = (),
        entropies: Collection[str] = (),
        max_tokens: int | None,
        packing: bool = False,
        is_sharded: bool = False,
    ):
        super().__init__()
        self.device = device
        self.old_logps = old_logps
        self.values = frozenset(values)
        self.critic = critic
        self.references = frozenset(references)
        self.choice_references = frozenset(choice_references)
        self.entropies = frozenset(entropies)
        self.max_tokens = max_tokens
        self.packing = packing
        self.is_sharded = is_sharded
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
        for module_id in self._order(rl_module, batch):
            module = rl_module[module_id].unwrapped()
            if module_id not in batch:
                self._score_nothing(module_id, module)
                continue
            data = batch[module_id]
            # On the host: reading ids on the device would wait for it.
            module.check_ids(np.asarray(data[columns.INPUT_IDS]))
            tensors = on_device(data, self.device)
            if module_id == self.critic:
                self._value(module, tensors)
            else:
                self._score(module_id, module, tensors)
            batch[module_id] = tensors
        return batch

    def _order(self, rl_module: Any, batch: dict[str, Any]) -> list[str]:
        """Return the modules to make passes with, in the same order on all Learners."""
        # A Learner without rows of a sharded module gathers it with the others.
        return sorted(rl_module.keys()) if self.is_sharded else list(batch)

    @torch.no_grad()
    def _value(self, module: LLMRLModule, data: dict[str, Any]) -> None:
        """Add the values of a critic that is a module of its own."""
        values = torch.zeros_like(data[columns.BEHAVIOUR_LOGP])
        for index, part in self._passes(data):
            computed = module.compute_values(part)
            if index is not None:
                # Micro-batches are cut to their longest row, so they fill the first
                # columns only.
                values[index, : computed.shape[1]] = computed.float()
        data[columns.VALUES] = values
        # The learner expects this column in every batch; a critic samples nothing.
        add_old_logps(data, torch.zeros_like(values))

    @torch.no_grad()
    def _score(self, module_id: str, module: LLMRLModule, data: dict[str, Any]) -> None:
        wanted, old = self._wanted(module_id), data[columns.BEHAVIOUR_LOGP].clone()
        computed = {name: torch.zeros_like(old) for name in wanted}
        if Columns.ACTION_LOGP in wanted:
            computed[Columns.ACTION_LOGP] = old
        # Dropout would make old and new log-probabilities differ before any update.
        was_training = module.training
        module.eval()
        for index, part in self._passes(data) if wanted else ():
            for name, values in _pass(module, part, wanted).items():
                if index is not None:
                    computed[name][index, : values.shape[1]] = values
        module.train(was_training)
        if not self.defer_old_logps:
            add_old_logps(data, old)
        data[Columns.ACTIONS] = data[columns.INPUT_IDS]
        computed.pop(Columns.ACTION_LOGP, None)
        data.update(computed)

    @torch.no_grad()
    def _score_nothing(self, module_id: str, module: LLMRLModule) -> None:
        """Make the passes of the other Learners with a module that has no rows here."""
        wanted = self._wanted(module_id)
        for _, part in self._passes(None) if wanted else ():
            _pass(module, part, wanted)

    def _wanted(self, module_id: str) -> tuple[str, ...]:
        """Return the names of the columns to compute for a module."""
        if module_id == self.critic:
            return (columns.VALUES,)
        recompute = self.old_logps == "learner" and not self.defer_old_logps
        chosen = {
            Columns.ACTION_LOGP: recompute,
            columns.VALUES: module_id in self.values,
            columns.REF_LOGP: module_id in self.references,
            columns.REF_CHOICE_LOGPS: module_id in self.choice_references,
            columns.TOKEN_ENTROPY: module_id in self.entropies,
        }
        return tuple(name for name, is_wanted in chosen.items() if is_wanted)

    def _passes(
        self, data: dict[str, Any] | None
    ) -> Iterator[tuple[torch.Tensor | None, dict[str, Any]]]:
        """Yield row indices and micro-batches; None for a pass without rows."""
        parts: Iterator[Any] = iter(())
        if data is not None:
            parts = micro_batches(data, self.max_tokens, packing=self.packing)
        device = self.device or "cpu"
        for part in equal_passes(parts, device, is_sharded=self.is_sharded):
            yield part or (None, idle_rows(device))


def _pass(
    module: LLMRLModule, part: dict[str, Any], wanted: Collection[str]
) -> dict[str, torch.Tensor]:
    """Return the wanted columns of a micro-batch. Each [B, T]"""
    computed, hidden = {}, None
    if Columns.ACTION_LOGP in wanted or columns.TOKEN_ENTROPY in wanted:
        out = module._forward(part)
        hidden, scores = out[Columns.EMBEDDINGS], out[Columns.ACTION_DIST_INPUTS]
        computed[Columns.ACTION_LOGP] = scores[..., 0]
        computed[columns.TOKEN_ENTROPY] = scores[..., 1]
    # The hidden states of the pass above, if there was one, spare a second pass.
    if columns.VALUES in wanted:
        computed[columns.VALUES] = module.compute_values(
            part, embeddings=hidden
        ).float()
    if columns.REF_CHOICE_LOGPS in wanted:
        # Among them are those of the actions taken, at the trained tokens.
        every = module.reference_choice_logps(part)
        computed[columns.REF_CHOICE_LOGPS] = every
        untrained = ~part[Columns.LOSS_MASK]
        computed[columns.REF_LOGP] = every.masked_fill(untrained, 0.0)
    elif columns.REF_LOGP in wanted:
        computed[columns.REF_LOGP] = module.reference_logps(part)
    return {name: computed[name] for name in wanted}


def on_device(data: Mapping[str, Any], device: Device | None) -> dict[str, Any]:
    """Return columns on a device; masks and indices stay in host memory as well."""
    tensors = {k: upload(v, device) if _is_array(v) else v for k, v in data.items()}
    return {**tensors, columns.HOST: HostColumns.of(data)}


def add_old_logps(data: dict[str, Any], old: torch.Tensor) -> None:
    """Add the columns that RLlib's PPO loss reads about the sampling policy. [B, T]"""
    data[Columns.ACTION_LOGP] = old
    # Entropy 0: RLlib's PPO loss does not read that of the old policy.
    data[Columns.ACTION_DIST_INPUTS] = torch.stack([old, torch.zeros_like(old)], dim=-1)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)
