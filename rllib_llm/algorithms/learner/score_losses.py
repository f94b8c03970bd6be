"""Losses of episodes' scores in Learners, with their statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rllib_llm.algorithms.learner.learner_stats import LearnerStats
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import read
from rllib_llm.errors import ConfigError
from rllib_llm.losses.score_losses import outcome_loss, pairwise_loss
from rllib_llm.upload import upload


class ScoreLossesMixin(LearnerStats):
    """Mixin with the losses of pairs and of single episodes, summed."""

    def pairwise_sum(
        self,
        module_id: str,
        scores: torch.Tensor,
        batch: dict[str, Any],
        rows: np.ndarray,
        *,
        margin: float = 0.0,
        centering: float = 0.0,
    ) -> torch.Tensor:
        """Return the summed Bradley-Terry loss of a micro-batch of whole pairs.

        Args:
            module_id: Module of the scores.
            scores: Score of each episode. [N]
            batch: The micro-batch.
            rows: A row of each episode. int64 [N]
            margin: Difference that is asked for.
            centering: Weight of the squared scores.
        """
        chosen, rejected = (scores[i] for i in self._sides(batch, rows))
        loss = pairwise_loss(chosen, rejected, margin=margin, centering=centering)
        difference = (chosen - rejected).detach()
        for key, value in (
            ("score_loss", loss),
            # Half for a tie, as at the beginning, where all scores are 0.
            ("pair_accuracy", 0.5 * (1 + difference.sign())),
            ("margin", difference),
            ("chosen_score", chosen),
            ("rejected_score", rejected),
        ):
            self._add_stat(module_id, key, value.mean(), len(loss))
        return loss.sum()

    def _sides(self, batch: dict[str, Any], rows: np.ndarray) -> torch.Tensor:
        """Return the places of the chosen and the rejected side of each pair. [2, P]"""
        units = read(batch, columns.MULTI_AGENT_EPISODE_INDEX)[rows]
        order = np.lexsort((read(batch, columns.AGENT_INDEX)[rows], units))
        return upload(order.reshape(-1, 2).T.copy(), self._device)

    def outcome_sum(
        self,
        module_id: str,
        scores: torch.Tensor,
        batch: dict[str, Any],
        rows: np.ndarray,
        *,
        prior_logit: float = 0.0,
    ) -> torch.Tensor:
        """Return the summed cross-entropy of the success of a micro-batch.

        Args:
            module_id: Module of the scores.
            scores: Logits of episodes, or of their turns. [N]
            batch: The micro-batch.
            rows: Row of each. int64 [N]
            prior_logit: Added to the logits in the loss, so that they do not have to
                learn how frequent success is.
        """
        success = read(batch, columns.SUCCESS)[rows]
        if np.isnan(success).any():
            raise ConfigError(
                "The loss needs the success of every episode, which this environment "
                "does not report. Use another loss, e.g. 'pairwise' or 'td'."
            )
        target = upload(success, self._device)
        return self.label_sum(module_id, scores, target, prior_logit=prior_logit)

    def label_sum(
        self,
        module_id: str,
        scores: torch.Tensor,
        labels: torch.Tensor,
        *,
        prior_logit: float = 0.0,
    ) -> torch.Tensor:
        """Return the summed cross-entropy of labels from 0 to 1.

        Args:
            module_id: Module of the scores.
            scores: Logits. [N]
            labels: Probabilities that they are to have. [N]
            prior_logit: See :meth:`outcome_sum`.
        """
        loss = outcome_loss(scores + prior_logit, labels)
        is_right = ((scores.detach() > 0) == (labels > 0.5)).float()
        for key, value in (("score_loss", loss), ("outcome_accuracy", is_right)):
            self._add_stat(module_id, key, value.mean(), len(loss))
        return loss.sum()
