"""SFT's Learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.algorithms.learner.stored_rows import DENOMINATOR
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import read
from rllib_llm.losses.aggregation import weighted_loss
from rllib_llm.losses.surrogate import negative_log_likelihood

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rllib_llm.algorithms.sft.sft_config import SFTConfig
    from rllib_llm.types import Episode


class SFTTorchLearner(LLMLearnerMixin, TorchLearner):
    """Learner of the masked negative log-likelihood of demonstrated tokens."""

    @override(TorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: SFTConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        mask = batch[Columns.LOSS_MASK]
        logp = fwd_out[Columns.ACTION_DIST_INPUTS][..., 0]  # [B, T]
        nll = negative_log_likelihood(logp, mask)
        # The metric covers the expert's tokens only, even if observations are trained,
        # too.
        demonstrated = batch[columns.TURN_IDS] >= 0
        count = int(self._counted_tokens(batch).sum())
        self._add_stat(
            module_id, "nll", (nll * demonstrated).sum() / max(count, 1), count
        )
        return weighted_loss(nll, batch[columns.LOSS_WEIGHTS], batch[DENOMINATOR])

    @override(LLMLearnerMixin)
    def _log_lag(self, episodes: Sequence[Episode]) -> None:
        """Log nothing: demonstrations have no version of weights."""

    @override(LLMLearnerMixin)
    def _counted_tokens(self, data: dict[str, Any]) -> np.ndarray:
        """Return demonstrated tokens; observations do not add to the denominator."""
        return read(data, Columns.LOSS_MASK) & (read(data, columns.TURN_IDS) >= 0)
