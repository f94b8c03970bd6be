"""Scorers in Learners: their rows, passes without gradients, loss and update."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.causal_learner import CausalWeightsMixin
from rllib_llm.algorithms.learner.turn_critic_learner import TurnCriticMixin
from rllib_llm.algorithms.scorer.scorer_settings import VTRACE
from rllib_llm.connectors.learner.score_rows import add_old_logps, on_device
from rllib_llm.connectors.learner.token_rows import TokenRows
from rllib_llm.connectors.pipelines import row_settings
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import micro_batches, read, trained_places
from rllib_llm.data.turn_ends import TurnEnds, turns_of_tokens
from rllib_llm.distributed import all_reduce_sum
from rllib_llm.losses.score_losses import log_ratio_scores, pool_turns, return_loss
from rllib_llm.modules.scorer import SCORER_MODULE
from rllib_llm.seeding import stable_seed
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from ray.rllib.policy.sample_batch import MultiAgentBatch

    from rllib_llm.algorithms.scorer.scorer_settings import ScorerSettings


class ScorerMixin(CausalWeightsMixin, TurnCriticMixin):
    """Mixin that scores episodes with the scorer, and updates it after the policy.

    The scorer has rows, a denominator and an optimiser of its own. Updates of the
    policy have no rows of it, and its updates none of the policy. The rows of a unit (a
    pair, or an episode) stay in one micro-batch.
    """

    _scorer_id: str | None

    if TYPE_CHECKING:

        def in_update(self) -> AbstractContextManager[None]: ...
        def _minibatches(self, *args: Any) -> Iterator[MultiAgentBatch]: ...
        def _uncompiled_update(self, batch: Any) -> Any: ...

    def build(self) -> None:
        """Build the Learner and the connector of the scorer's rows."""
        self._scorer_id = SCORER_MODULE if self.config.uses_scorer else None
        super().build()
        if self._scorer_id is None:
            return
        self._settings = cast("ScorerSettings", self.config)
        settings = dataclasses.replace(
            row_settings(self.config), has_critic=False, row_per_turn=False
        )
        self._scorer_rows = TokenRows({SCORER_MODULE: settings})
        # Gradient checkpointing acts in training mode only; there is no dropout.
        self.module[SCORER_MODULE].unwrapped().train()

    def _data_of(self, units: Sequence[Any]) -> dict[str, Any] | None:
        """Return the columns of units on the device; None without units."""
        if not units:
            return None
        batch = self._scorer_rows(rl_module=self.module, batch={}, episodes=list(units))
        data = on_device(batch[SCORER_MODULE], self._device)
        # Minibatches expect this column; a scorer samples nothing.
        logps = torch.zeros_like(data[columns.BEHAVIOUR_LOGP])
        if self._settings.scorer_loss == VTRACE:
            logps = self.policy_logps(data)
        add_old_logps(data, logps)
        return data

    def _whole_units(self, data: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for _, part in micro_batches(
            data,
            self.config.micro_batch_tokens,
            together=read(data, columns.MULTI_AGENT_EPISODE_INDEX),
            packing=self.config.packing,
        ):
            yield part

    def _turn_scores(self, part: dict[str, Any]) -> tuple[TurnEnds, torch.Tensor]:
        """Return the ends of turns and their scores. [M]"""
        if self._settings.is_turn_critic:
            return self._turn_advantages(part)
        out = self.module[SCORER_MODULE].unwrapped().forward_train(part)
        ends = TurnEnds.of(part)
        if self._settings.scorer_scores == "head":
            return ends, out[columns.SCORES]
        where = trained_places(part)
        scores = log_ratio_scores(
            out[Columns.ACTION_DIST_INPUTS][..., 0][where],
            part[columns.BEHAVIOUR_LOGP][where],
            upload(turns_of_tokens(part), self._device),
            len(ends.rows),
            beta=self._settings.scorer_beta,
        )
        return ends, scores

    # Scores ---------------------------------------------------------------------------

    @torch.no_grad()
    def score_turns(self, shard: Sequence[Any]) -> list[list[float]]:
        """Return the scores of the turns of each episode, in order. [H] each

        Args:
            shard: Whole episodes.
        """
        scores: list[list[float]] = [[] for _ in shard]
        with self.in_update():
            data = self._data_of(shard)
            for part in () if data is None else self._whole_units(data):
                ends, computed = self._turn_scores(part)
                values = computed.tolist()
                owners = ends.episodes
                for place in np.lexsort((ends.turns, owners)):
                    scores[owners[place]].append(values[place])
        return scores

    # Update ---------------------------------------------------------------------------

    def update_scorer(
        self, shard: Sequence[Any], iteration: int, prior_logit: float = 0.0
    ) -> dict[str, float]:
        """Update the scorer with these units, and return its metrics.

        Args:
            shard: This Learner's pairs or episodes; the others' may be more.
            iteration: Number of the iteration, on which the order of units depends.
            prior_logit: Logarithm of the expert's turns over the policy's, of all
                Learners, for the loss "expert"; 0 for others.
        """
        settings, run = self._settings, self.config.seed or 0
        self._prior_logit = prior_logit
        seeds = [
            stable_seed(run, SCORER_MODULE, iteration, epoch)
            for epoch in range(settings.scorer_num_epochs)
        ]
        size = settings.scorer_minibatch_size
        with self.in_update():
            columns_of = self._data_of(shard)
            data = {} if columns_of is None else {SCORER_MODULE: columns_of}
            for minibatch in self._minibatches(data, seeds, size, 1):
                self._uncompiled_update(minibatch.policy_batches)
                self._update_target_network()
        means = self._means().get(SCORER_MODULE, {})
        self._reset_stats()
        return means

    def _backward_scorer(
        self, data: dict[str, Any] | None
    ) -> tuple[None, torch.Tensor, float]:
        """Accumulate the scorer's gradient; see ``_backward`` of the Learner."""
        units = 0.0 if data is None else float(self._count_scored(data))
        # A Learner without rows joins the collective call.
        (total,) = all_reduce_sum([units], self._device)
        loss_sum = torch.zeros((), device=self._device)
        for part in () if data is None else self._whole_units(data):
            loss = self._scorer_loss(part) / total
            loss.backward()
            loss_sum = loss_sum + loss.detach()
        return None, loss_sum, total

    def _count_scored(self, data: dict[str, Any]) -> int:
        """Return the number of losses: of pairs, episodes or turns."""
        loss = self._settings.scorer_loss
        if loss == "causal":
            return self._count_replies(data)
        if loss in ("expert", "process") or self._settings.is_turn_critic:
            return len(TurnEnds.of(data).rows)
        is_pair = loss == "pairwise"
        unit = columns.MULTI_AGENT_EPISODE_INDEX if is_pair else columns.EPISODE_INDEX
        return len(np.unique(read(data, unit)))

    def _scorer_loss(self, part: dict[str, Any]) -> torch.Tensor:
        """Return the summed loss of a micro-batch of whole units."""
        if self._settings.scorer_loss == "causal":
            return self._causal_sum(part)
        if self._settings.is_turn_critic:
            return self._turn_critic_sum(part)
        ends, of_turns = self._turn_scores(part)
        loss = self._settings.scorer_loss
        if loss == "expert":
            return self.outcome_sum(
                SCORER_MODULE,
                of_turns,
                part,
                ends.rows,
                prior_logit=self._prior_logit,
            )
        if loss == "process":
            return self.label_sum(SCORER_MODULE, of_turns, self._steps(part, ends)[0])
        last = ends.last()
        scores, rows = self._pooled(ends, last, of_turns), ends.rows[last]
        if loss == "pairwise":
            return self.pairwise_sum(SCORER_MODULE, scores, part, rows)
        if loss == "outcome":
            return self.outcome_sum(SCORER_MODULE, scores, part, rows)
        return self._return_sum(scores, ends, part)

    def _pooled(
        self, ends: TurnEnds, last: np.ndarray, of_turns: torch.Tensor
    ) -> torch.Tensor:
        """Return the score of each episode, by its number. [N]"""
        pool = self._settings.scorer_pool
        if pool == "last":
            return of_turns[upload(last, self._device)]
        _, owner = np.unique(ends.episodes, return_inverse=True)
        return pool_turns(of_turns, upload(owner, self._device), len(last), pool)

    def _return_sum(
        self, scores: torch.Tensor, ends: TurnEnds, part: dict[str, Any]
    ) -> torch.Tensor:
        """Return the summed squared error of scores as returns."""
        # A turn's reward is on its last token.
        where = upload(np.stack([ends.rows, ends.cols]), self._device)
        rewards = part[columns.TOKEN_REWARDS][where[0], where[1]]
        _, owner = np.unique(ends.episodes, return_inverse=True)
        index = upload(owner, self._device)
        returns = pool_turns(rewards, index, len(scores), "sum")
        loss = return_loss(scores, returns)
        self._add_stat(SCORER_MODULE, "score_loss", loss.mean(), len(loss))
        return loss.sum()
