"""RewardModel's Learner: losses of scores, and scores without gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override

from rllib_llm.algorithms.learner.llm_learner import LLMLearnerMixin
from rllib_llm.algorithms.learner.stored_rows import DENOMINATOR
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches, read
from rllib_llm.data.turn_ends import TurnEnds
from rllib_llm.distributed import all_reduce_sum
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from rllib_llm.algorithms.reward_model.reward_model_config import RewardModelConfig
    from rllib_llm.types import Episode


class RewardModelTorchLearner(LLMLearnerMixin, TorchLearner):
    """Learner of the scores of pairs or single episodes.

    The rows of a pair stay in one micro-batch, so that its loss is computed there.
    """

    config: RewardModelConfig

    def build(self) -> None:
        """Build the Learner."""
        super().build()
        self._score_sums = torch.zeros(3, device=self._device)  # count, sum, squares

    @override(LLMLearnerMixin)
    def _parts(
        self, module_id: str, data: dict[str, Any], config: Any
    ) -> Iterator[dict[str, Any]]:
        for _, part in micro_batches(
            data,
            config.micro_batch_tokens,
            together=read(data, columns.MULTI_AGENT_EPISODE_INDEX),
            packing=config.packing,
        ):
            yield part

    @override(TorchLearner)
    def compute_loss_for_module(
        self,
        *,
        module_id: str,
        config: RewardModelConfig,
        batch: dict[str, Any],
        fwd_out: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        ends = TurnEnds.of(batch)
        last = ends.last()
        scores = fwd_out[columns.SCORES][upload(last, self._device)]  # [episodes]
        self._add_to_sums(scores.detach())
        rows = ends.rows[last]
        if config.score_loss == "outcome":
            loss = self.outcome_sum(module_id, scores, batch, rows)
        else:
            loss = self.pairwise_sum(
                module_id,
                scores,
                batch,
                rows,
                margin=config.score_margin,
                centering=config.centering,
            )
        return loss / batch[DENOMINATOR]

    @override(LLMLearnerMixin)
    def _count_units(self, data: dict[str, Any], config: Any) -> float:
        """Return the number of pairs, or of episodes: the denominator of the loss."""
        by_pair = config.score_loss == "pairwise"
        unit = columns.MULTI_AGENT_EPISODE_INDEX if by_pair else columns.EPISODE_INDEX
        return float(len(np.unique(read(data, unit))))

    @override(LLMLearnerMixin)
    def _log_lag(self, episodes: Sequence[Episode]) -> None:
        """Log nothing: the policy that samples is never updated."""

    # Mean and standard deviation ------------------------------------------------------

    def _add_to_sums(self, scores: torch.Tensor) -> None:
        values = scores.double()
        parts = (torch.ones_like(values), values, values.square())
        self._score_sums = self._score_sums + torch.stack([p.sum() for p in parts])

    @override(LLMLearnerMixin)
    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        count, total, squares = all_reduce_sum(self._score_sums.tolist(), self._device)
        if count:
            mean = total / count
            std = math.sqrt(max(squares / count - mean**2, 0.0))
            stats = self.module[DEFAULT_MODULE_ID].unwrapped().score_stats
            stats.copy_(torch.tensor([mean, std]))
            for key, value in (("score_mean", mean), ("score_std", std)):
                self.metrics.log_value((DEFAULT_MODULE_ID, key), value, window=1)
        self._score_sums = torch.zeros_like(self._score_sums)
        super().after_gradient_based_update(timesteps=timesteps)

    # Scores ---------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, units: Sequence[Any]) -> np.ndarray:
        """Return the scores of episodes, or of both sides of pairs. [N] or [N, 2]

        Args:
            units: Finished episodes, or pairs of them.
        """
        batch = self._make_batch_if_necessary(
            training_data=LLMTrainingData(episodes=list(units))
        ).policy_batches[DEFAULT_MODULE_ID]
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        scores: dict[tuple[int, int], float] = {}
        for part in self._parts(DEFAULT_MODULE_ID, dict(batch), self.config):
            ends = TurnEnds.of(part)
            last = ends.last()
            computed = module.forward_train(part)[columns.SCORES].tolist()
            for place in last:
                row = ends.rows[place]
                unit = read(part, columns.MULTI_AGENT_EPISODE_INDEX)[row]
                side = read(part, columns.AGENT_INDEX)[row]
                scores[int(unit), int(side)] = computed[place]
        ordered = np.array([scores[key] for key in sorted(scores)])
        return ordered if len(ordered) == len(units) else ordered.reshape(-1, 2)
