"""Pref's Learner: all rows are of pairs or labelled episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.algorithms.learner.stored_rows import DENOMINATOR
from rllib_llm.algorithms.pref.influence_probe import InfluenceProbeMixin

if TYPE_CHECKING:
    from rllib_llm.algorithms.pref.pref_config import PrefConfig
    from rllib_llm.types import Episode


class PrefTorchLearner(InfluenceProbeMixin, LLMLearnerMixin, TorchLearner):
    """Learner of losses that depend on an episode's log-probabilities by their sum."""

    config: PrefConfig

    @override(TorchLearner)
    def _uncompiled_update(
        self, batch: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, dict[str, torch.Tensor], dict[str, Any]]:
        for module_id in sorted(set(self.module.keys()) - {self._scorer_id}):
            self.weigh_units(module_id, batch.get(module_id))
        return super()._uncompiled_update(batch, **kwargs)

    @override(TorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: PrefConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        logp = fwd_out[Columns.ACTION_DIST_INPUTS][..., 0]  # [B, T]
        return self.preference_pass(module_id, batch, logp, batch[DENOMINATOR])

    @override(LLMLearnerMixin)
    def _count_units(self, data: dict[str, Any], config: Any) -> float:
        """Return the number of pairs or episodes, the denominator of the loss."""
        return self.count_compared(data)

    @override(LLMLearnerMixin)
    def _log_lag(self, episodes: Sequence[Episode]) -> None:
        """Log the age of the weights that sampled; written turns have none."""
        if self.config.data_files is None and not self.config.expert_episodes:
            super()._log_lag(episodes)
