"""Parts of the loss in Learners: components, reference KL, mismatch correction."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns

from rllib_llm.algorithms.learner.learner_stats import IS_WEIGHT_SQUARE, LearnerStats
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import count, keep, read
from rllib_llm.distributed import all_reduce_sum, gather, world_size
from rllib_llm.errors import RLlibLLMError
from rllib_llm.losses.action_distillation import ActionProbs
from rllib_llm.losses.composed_loss import ComposedLoss
from rllib_llm.losses.importance_correction import mismatch_weights
from rllib_llm.losses.kl import kl_penalty
from rllib_llm.losses.token_batch import TokenBatch, rank_from_top
from rllib_llm.modules.action_head import ChoiceTokens
from rllib_llm.seeding import stable_seed
from rllib_llm.upload import upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from rllib_llm.types import LLMConfig

_STATE = "llm_composed_loss"


class ComposedLossMixin(LearnerStats):
    """Mixin that holds each policy's loss components; see docs/losses.md.

    Inputs over the whole batch (ranks, shares, transformed advantages) are computed
    once per iteration over the tokens of all Learners, before it is split, so that
    neither micro-batches nor the number of Learners change a gradient.

    The Learner calls the methods of parts that are configured, and no others: a policy
    with the algorithm's own loss takes no step here.
    """

    _replay_losses: dict[str, ComposedLoss]

    if TYPE_CHECKING:

        def on_sampled(
            self, data: dict[str, Any], change: Callable[[dict[str, Any]], None]
        ) -> None: ...
        def add_causal_weights(self, batch: dict[str, Any]) -> None: ...

    def build(self) -> None:
        """Build the Learner and its loss components."""
        super().build()
        configs = {
            module_id: self.config.get_config_for_module(module_id)
            for module_id in self.config.llm_module_ids
        }
        self._composed_loss: dict[str, ComposedLoss] = {
            module_id: config.build_composed_loss()
            for module_id, config in configs.items()
        }
        needs = {m: loss.needs for m, loss in self._composed_loss.items()}
        self._token_needs: frozenset[str] = frozenset().union(*needs.values())
        replay_needs = {m: loss.needs for m, loss in self._replay_losses.items()}
        self._uncut_sequences = frozenset(
            m
            for m in needs
            if "sequences" in needs[m] | replay_needs.get(m, frozenset())
        )
        # Policies without correction have no entry.
        corrections = {m: config.mismatch_settings() for m, config in configs.items()}
        self._mismatch_settings = {m: s for m, s in corrections.items() if s}

    def _prepare_tokens(self, data: dict[str, dict[str, Any]]) -> None:
        """Add the columns that components need, and transform advantages."""
        # Sorted: all Learners must call the collective operations in the same order.
        for module_id, components in sorted(self._composed_loss.items()):
            batch = data.get(module_id)
            if "success" in components.needs:
                share = functools.partial(self._share_success, module_id)
                share(None) if batch is None else self.on_sampled(batch, share)
            if "causal" in components.needs and batch is not None:
                self.on_sampled(batch, self.add_causal_weights)
            if "scores" not in components.needs or (
                batch is None and world_size() == 1
            ):
                continue
            # The other Learners wait for this one's part of moments and ranks.
            batch = self._no_rows() if batch is None else batch
            rank = functools.partial(self._rank, module_id, components)
            self.on_sampled(batch, rank)

    def _rank(
        self, module_id: str, components: ComposedLoss, batch: dict[str, Any]
    ) -> None:
        """Add the ranks of tokens to a batch, and transform its advantages."""
        tokens = self._scored(module_id, batch)
        batch[columns.ENTROPY_RANK] = tokens.entropy_rank
        batch[columns.COVARIANCE_RANK] = tokens.covariance_rank
        batch[Columns.ADVANTAGES] = components.transform(tokens)

    def _no_rows(self) -> dict[str, Any]:
        """Return a batch without rows, with the columns of :meth:`token_batch`."""
        none = torch.zeros(0, 1, device=self._device)
        index = torch.zeros(0, dtype=torch.int64, device=self._device)
        reals = (Columns.ACTION_LOGP, columns.TOKEN_ENTROPY, Columns.ADVANTAGES)
        return {
            **dict.fromkeys((*reals, columns.REF_LOGP), none),
            Columns.LOSS_MASK: none.bool(),
            columns.TURN_IDS: none.long(),
            columns.EPISODE_INDEX: index,
            columns.SUCCESS: index.float(),
        }

    def _scored(self, module_id: str, batch: dict[str, Any]) -> TokenBatch:
        """Return all rows as they are before the update, with their ranks."""
        from rllib_llm.losses.token_advantage_transforms import covariances

        old, mask = batch[Columns.ACTION_LOGP], batch[Columns.LOSS_MASK]
        scores = torch.stack([old, batch[columns.TOKEN_ENTROPY]], dim=-1)
        tokens = self.token_batch(module_id, batch, scores)
        tokens.pool = gather
        tokens.entropy_rank = rank_from_top(tokens.entropy, mask, gather)
        tokens.covariance_rank = rank_from_top(covariances(tokens), mask, gather)
        return tokens

    def _share_success(self, module_id: str, batch: dict[str, Any] | None) -> None:
        """Add the share of trained tokens that belong to solved episodes."""
        counts = (0.0, 0.0, 0.0)
        if batch is not None:
            lengths = read(batch, Columns.LOSS_MASK).sum(1)
            success = read(batch, columns.SUCCESS)
            defined = float(lengths[~np.isnan(success)].sum())
            counts = float(lengths[success == 1].sum()), defined, float(lengths.sum())
        solved, defined, total = all_reduce_sum(counts, self._device)
        if total and not defined:
            raise RLlibLLMError(
                f"loss_terms of {module_id!r} need the success of episodes, but the "
                "environment reports none. Let it set success, or omit the term."
            )
        if batch is not None:
            share = solved / total if total else 0.0
            shares = np.full(len(lengths), share, np.float32)
            keep(batch, columns.SUCCESS_SHARE, shares)
            batch[columns.SUCCESS_SHARE] = upload(shares, self._device)

    def token_batch(
        self,
        module_id: str,
        batch: dict[str, Any],
        scores: torch.Tensor,
        choice_logps: torch.Tensor | None = None,
    ) -> TokenBatch:
        """Return a micro-batch as the input of loss components.

        Args:
            module_id: Policy of the rows.
            batch: The micro-batch.
            scores: Log-probabilities and entropies. [B, T, 2]
            choice_logps: Log-probabilities of all admissible actions of the trained
                turns, of which loss terms read. [M, K]
        """
        actions = None
        if (
            choice_logps is not None
            and "actions" in self._composed_loss[module_id].needs
        ):
            actions = _action_probs(batch, choice_logps)
        share = 1.0
        if columns.SUCCESS_SHARE in batch:
            share = float(read(batch, columns.SUCCESS_SHARE)[0])
        # RLlib counts the update before it runs; schedules of weights begin at 0.
        update = max(0, self._weights_seq_no - 1)
        return TokenBatch(
            logp=scores[..., 0],
            old_logp=batch[Columns.ACTION_LOGP],
            advantages=batch[Columns.ADVANTAGES],
            mask=batch[Columns.LOSS_MASK],
            entropy=scores[..., 1],
            turn_ids=batch[columns.TURN_IDS],
            episode_index=batch[columns.EPISODE_INDEX],
            ref_logp=batch.get(columns.REF_LOGP),
            success=batch.get(columns.SUCCESS),
            success_share=share,
            entropy_rank=batch.get(columns.ENTROPY_RANK),
            covariance_rank=batch.get(columns.COVARIANCE_RANK),
            causal_weights=batch.get(columns.CAUSAL_WEIGHTS),
            actions=actions,
            update=update,
            seed=stable_seed(self.config.seed or 0, update, 0, module_id),
            pool=None,
            host=(
                read(batch, Columns.LOSS_MASK),
                read(batch, columns.TURN_IDS),
                read(batch, columns.EPISODE_INDEX),
            ),
        )

    @torch.no_grad()
    def _correct_mismatch(self, module_id: str, batch: dict[str, Any]) -> None:
        """Multiply the advantages of ``batch`` by importance weights.

        Policy losses are linear in the advantages' scale, so this weights each token's
        policy loss and no other term.

        Args:
            module_id: Policy of the batch; ``_mismatch_settings`` has its settings.
            batch: Whole sequences if the settings contain a level or band of sequences.
        """
        # Before any division: a policy may have rows without trained tokens.
        mask, trained = batch[Columns.LOSS_MASK], count(batch)
        if not trained:
            return
        correction = mismatch_weights(
            batch[Columns.ACTION_LOGP],
            batch[columns.BEHAVIOUR_LOGP],
            mask,
            batch[columns.EPISODE_INDEX],
            num_sequences=int(read(batch, columns.EPISODE_INDEX).max()) + 1,
            **self._mismatch_settings[module_id],
        )
        batch[Columns.ADVANTAGES] = batch[Columns.ADVANTAGES] * correction.weights
        for key, value in (
            ("is_weight_mean", correction.weights),
            (IS_WEIGHT_SQUARE, correction.weights.square()),
            ("is_clipped_frac", correction.clipped),
            ("is_masked_frac", correction.dropped),
        ):
            self._add_stat(module_id, key, value.sum() / trained, trained)
        self._max_stat(module_id, "is_ratio_max", correction.ratio.max())

    def _add_terms(
        self, module_id: str, tokens: TokenBatch, trained: int
    ) -> torch.Tensor | float:
        """Return the sum of the loss terms per token. [B, T], or 0.0 if there are none

        Args:
            module_id: Policy of the terms.
            tokens: The micro-batch.
            trained: Number of trained tokens.
        """
        total: torch.Tensor | float = 0.0
        for name, loss in self._composed_loss[module_id].term_losses(tokens):
            self._add_stat(
                module_id, "loss_term_" + name, loss.sum() / trained, trained
            )
            total = total + loss
        return total

    def _log_stats(self) -> None:
        """Let components adapt to the update, then log it."""
        for module_id, components in sorted(self._composed_loss.items()):
            if not any(hasattr(c.call, "end_update") for c in components.terms):
                continue
            stats = self._stats.get(module_id, {})
            # Over all Learners' tokens, so that their coefficients stay equal.
            sums = (float(stats.get("entropy", 0)), stats.get("entropy/weight", 0))
            total, weight = all_reduce_sum(sums, self._device)
            if weight:
                coeffs = components.end_update({"entropy": total / weight})
                for name, coeff in coeffs.items():
                    self._add_stat(module_id, "loss_term_coeff_" + name, coeff, 1.0)
        super()._log_stats()

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state with that of the components."""
        state = super().get_state(*args, **kwargs)
        if not kwargs.get("inference_only"):
            # EnvRunners get inference-only states, and need no losses.
            state[_STATE] = {m: p.get_state() for m, p in self._composed_loss.items()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore :meth:`get_state`'s result."""
        super().set_state(state)
        for module_id, component_state in state.get(_STATE, {}).items():
            self._composed_loss[module_id].set_state(component_state)


def _action_probs(batch: dict[str, Any], choice_logps: torch.Tensor) -> ActionProbs:
    """Return the probabilities of all admissible actions of a micro-batch.

    Args:
        batch: The micro-batch.
        choice_logps: Log-probabilities under the policy being trained. [M, K]
    """
    tokens = ChoiceTokens.find(batch)
    reference = batch.get(columns.REF_CHOICE_LOGPS)
    if reference is not None:
        reference = tokens.from_first_tokens(reference, -torch.inf)
    expert = batch.get(columns.EXPERT_PROBS)
    if expert is not None:
        expert = tokens.from_first_tokens(expert, 0.0).log()
    return ActionProbs(choice_logps, *tokens.taken(), reference, expert)


class ReferenceKLMixin(LearnerStats):
    """Mixin that computes the KL to the reference and adapts its coefficient."""

    def build(self) -> None:
        """Build the Learner and set the coefficients."""
        super().build()
        self._ref_kl_coeffs = {
            module_id: self.config.get_config_for_module(module_id).ref_kl_coeff
            for module_id in self.module.keys()
        }

    def _ref_kl_loss(
        self,
        module_id: str,
        config: LLMConfig,
        batch: dict[str, Any],
        logp: torch.Tensor,
    ) -> torch.Tensor | float:
        """Return the reference KL's part of the loss, and log it.

        Args:
            module_id: Policy of the loss.
            config: That policy's config.
            batch: The micro-batch, with the reference's log-probabilities.
            logp: Log-probabilities under the policy being trained. [B, T]

        Returns:
            Loss per token [B, T]; 0.0 if the KL is part of the rewards.
        """
        mask, largest = batch[Columns.LOSS_MASK], config.ref_kl_clip
        # At least 1: micro-batches without trained tokens are skipped.
        trained = count(batch)
        kl = kl_penalty(
            logp,
            batch[columns.REF_LOGP],
            mask,
            config.ref_kl_estimator,
            largest=largest,
        )
        self._add_stat(module_id, "ref_kl", kl.sum() / trained, trained)
        if config.ref_kl_estimator == "k3" and largest is not None:
            share = (kl.detach() >= largest).sum() / trained
            self._add_stat(module_id, "ref_kl_clip_frac", share, trained)
        # Logged in any case; in the reward, GAE has already subtracted it.
        if config.ref_kl_in == "reward":
            return 0.0
        return self._ref_kl_coeffs[module_id] * kl

    def _adapt_ref_kl(self, module_id: str) -> None:
        """Adapt the reference-KL coefficient towards ``ref_kl_target``, as RLlib does.

        The rule is that of PPO's adaptive KL coefficient: x1.5 above twice the target,
        x0.5 below half of it. The KL is over all Learners' tokens, so that their
        coefficients stay equal.
        """
        target = self.config.get_config_for_module(module_id).ref_kl_target
        if target is not None:
            stats = self._stats[module_id]
            local_sums = [float(stats[key]) for key in ("ref_kl", "ref_kl/weight")]
            kl, weight = all_reduce_sum(local_sums, self._device)
            # Sums are compared instead of means, so that a weight of 0 needs no
            # division.
            if kl > 2.0 * target * weight:
                self._ref_kl_coeffs[module_id] *= 1.5
            elif kl < 0.5 * target * weight:
                self._ref_kl_coeffs[module_id] *= 0.5
        self._publish_ref_kl()
        self._add_stat(module_id, "ref_kl_coeff", self._ref_kl_coeffs[module_id], 1.0)

    def _publish_ref_kl(self) -> None:
        for component in getattr(self._learner_connector, "connectors", []):
            for module_id, settings in getattr(component, "settings", {}).items():
                if getattr(settings, "ref_kl_coeff", None) is not None:
                    # The GAE connector holds its own settings.
                    settings.ref_kl_coeff = self._ref_kl_coeffs[module_id]
