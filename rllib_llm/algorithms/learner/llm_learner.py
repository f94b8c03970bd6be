"""Base of all Learners: minibatches, update step and state."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.annotations import override

from rllib_llm import compat
from rllib_llm.algorithms.learner.fast_layers import (
    LOW_PRECISION,
    float32_attention,
    precision_in_force,
)
from rllib_llm.algorithms.learner.learner_state import LearnerStateMixin
from rllib_llm.algorithms.learner.learner_stats import LearnerStats
from rllib_llm.algorithms.learner.loss_mixin import ComposedLossMixin, ReferenceKLMixin
from rllib_llm.algorithms.learner.mask_policy import MaskPolicyMixin
from rllib_llm.algorithms.learner.non_llm_learner import NonLLMLearnerMixin
from rllib_llm.algorithms.learner.optimizers import OptimizerMixin
from rllib_llm.algorithms.learner.preference_mixin import PreferenceMixin
from rllib_llm.algorithms.learner.scorer_learner import ScorerMixin
from rllib_llm.algorithms.learner.sharding import ShardingMixin, language_models
from rllib_llm.algorithms.learner.stored_rows import (
    DENOMINATOR,
    SOURCE_OF_PART,
    StoredRowsMixin,
    episodes_by_source,
)
from rllib_llm.algorithms.learner.text_logps import TextLogpsMixin
from rllib_llm.connectors.learner.score_rows import ScoreRows, add_old_logps
from rllib_llm.connectors.learner.token_rows import TokenRows
from rllib_llm.data import columns
from rllib_llm.data.episode_data import FILE, PAIR, SAMPLED
from rllib_llm.data.micro_batches import (
    count,
    count_pictures,
    micro_batches,
    read,
    select_rows,
)
from rllib_llm.distributed import (
    all_reduce_sum,
    equal_passes,
    sum_gradients,
    sum_tensors,
)
from rllib_llm.losses.aggregation import denominator
from rllib_llm.modules.critic import CRITIC_MODULE
from rllib_llm.modules.loading import models_placed_on
from rllib_llm.seeding import stable_seed
from rllib_llm.torch_threads import choose_threads, torch_settings
from rllib_llm.transcripts.learner_annotations import TokenAnnotationsMixin

if TYPE_CHECKING:
    from ray.rllib.core.learner.training_data import TrainingData
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from transformers import PreTrainedModel

    from rllib_llm.algorithms.learner.weight_transfer import WeightSender
    from rllib_llm.types import LLMConfig


class LLMLearnerMixin(
    LearnerStateMixin,
    ScorerMixin,
    ComposedLossMixin,
    StoredRowsMixin,
    NonLLMLearnerMixin,
    ReferenceKLMixin,
    MaskPolicyMixin,
    ShardingMixin,
    OptimizerMixin,
    TokenAnnotationsMixin,
    PreferenceMixin,
    TextLogpsMixin,
    LearnerStats,
):
    """Exactly-once epochs, token-budget micro-batches, one denominator each step.

    Put it before a TorchLearner class in the bases. RLlib keeps optimisers, schedules,
    gradient clipping, metrics and checkpoints. Replaced, with reasons:

    - the minibatch iterator, which repeats rows to fill its last minibatch;
    - the update step, which would need the whole minibatch in memory at once;
    - the DDP wrapper, which averages gradients over ranks with their own denominators.

    A *minibatch* is counted in episodes over all Learners (``minibatch_size``); rows of
    an episode stay together. Subclasses write ``compute_loss_for_module``; its batch
    holds ``loss_denominator``, the minibatch's denominator over all Learners.
    """

    weight_sender: WeightSender | None = None  # connection to an engine, once made

    # Building ------------------------------------------------------------------------

    def build(self) -> None:
        """Build module, optimisers and connectors."""
        self._non_llm_ids = frozenset(self.config.non_llm_module_ids)
        self._critic_id = CRITIC_MODULE if self.config.critic_view else None
        self.is_sharded = self.config.sharding is not None
        if torch.distributed.is_initialized():
            compat.limit_collectives(self.config.collective_timeout_s)
        super().build()
        self._num_threads = choose_threads(
            self.config.torch_num_threads,
            [self.module[m].unwrapped() for m in self.config.llm_module_ids],
            processes=self.config.num_learners or 1,
            device=torch.device(self._device),
        )
        if self.config.packing:
            self._check_packing()
        for module_id in self.config.llm_module_ids:
            # Gradient checkpointing acts in training mode only; there is no dropout.
            self.module[module_id].unwrapped().train()
        self._reset_stats()
        self._is_first_pass = True
        self._mismatch_in_first_pass = True
        self._nan_steps = 0

    @override(TorchLearner)
    def _make_module(self) -> MultiRLModule:
        """Build the modules; their models and copies of them on the device."""
        # Shards move to it layer by layer.
        with models_placed_on("cpu" if self.is_sharded else self._device):
            return super()._make_module()

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        """Do nothing: gradients are summed over Learners after backward instead."""

    @override(Learner)
    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Update as RLlib does, with ``matmul_precision`` and the threads in force.

        Gradients are freed at the end, so that sampling can use their memory.
        """
        with self.in_update():
            return super().update(*args, **kwargs)

    @contextlib.contextmanager
    def in_update(self) -> Iterator[None]:
        """Compute as in an update, and free its memory at the end."""
        with (
            precision_in_force(self.config.matmul_precision),
            torch_settings(self._num_threads),
            float32_attention(self._low_precision_models()),
        ):
            try:
                yield
            finally:
                # Also after an error: sampling must not start with the gradients'
                # memory held.
                for optimizer in self._optimizer_parameters:
                    optimizer.zero_grad(set_to_none=True)
                if self.is_sharded:
                    self.reshard()

    def _low_precision_models(self) -> list[PreTrainedModel]:
        """Return the models of policies and critics that compute so on a CPU."""
        # Compiled graphs have the attention with which they were traced.
        if torch.device(self._device).type != "cpu" or self.config.lm_compile:
            return []
        models = [part.lm for part in language_models(self.module).values()]
        is_cast = self.config.lm_autocast is not None
        return [lm for lm in models if is_cast or lm.dtype in LOW_PRECISION]

    # Minibatches ---------------------------------------------------------------------

    @override(Learner)
    def _create_iterator_if_necessary(
        self,
        *,
        training_data: TrainingData,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        **kwargs: Any,
    ) -> Iterator[MultiAgentBatch]:
        self._begin_annotations(training_data.episodes or ())
        self._log_lag(self.sampled_only(training_data.episodes or ()))
        # Of run, update and epoch: a resumed run shuffles alike, on every rank.
        run, update = self.config.seed or 0, self._weights_seq_no
        seeds = [
            stable_seed(run, update, epoch, DEFAULT_MODULE_ID)
            for epoch in range(num_epochs)
        ]
        # Before the connectors run, which compute the old log-probabilities otherwise.
        deferred = self._defer_old_logps(training_data, num_epochs, minibatch_size)
        self._choose_modules()
        batch = self._make_batch_if_necessary(training_data=training_data)
        data = {
            module_id: dict(module_batch)
            for module_id, module_batch in batch.policy_batches.items()
            if self.should_module_be_updated(module_id, batch)
        }
        self._is_first_pass = True
        # If the first training pass computes the old log-probabilities, or they are the
        # engine's, the mismatch is measured there; otherwise from the columns here.
        recorded = self.config.old_logps == "engine"
        self._mismatch_in_first_pass = deferred or recorded
        of_tokens = {m: d for m, d in data.items() if m not in self._non_llm_ids}
        if self._token_needs:
            self._prepare_tokens(of_tokens)
        self._log_batch(of_tokens)
        for module_id, columns_of_module in of_tokens.items():
            self._log_sources(module_id, columns_of_module)
        for module_id, columns_of_module in of_tokens.items():
            has_logps = Columns.ACTION_LOGP in columns_of_module
            if has_logps and module_id in self._mismatch_settings:
                correct = functools.partial(self._correct_mismatch, module_id)
                self.on_sampled(columns_of_module, correct)
        return self._minibatches(data, seeds, minibatch_size, batch.env_steps())

    def _defer_old_logps(
        self, training_data: TrainingData, num_epochs: int, minibatch_size: int | None
    ) -> bool:
        """Let the training pass compute old log-probabilities if it is the only one."""
        given = training_data.episodes or ()
        counts = [len(self.sampled_only(given)), len(given)]
        sampled, episodes = all_reduce_sum(counts, self._device)
        episodes = sampled or episodes
        # With one optimiser step the training pass itself sees the weights before the
        # update, so a separate forward pass would compute the same numbers.
        one_step = num_epochs == 1 and (minibatch_size or math.inf) >= episodes > 0
        deferred = one_step and self.config.old_logps_may_wait
        deferred = deferred and "scores" not in self._token_needs
        for component in getattr(self._learner_connector, "connectors", []):
            if isinstance(component, ScoreRows):
                component.defer_old_logps = deferred
        return deferred

    def _choose_modules(self) -> None:
        """Restrict the rows to the policies whose turns this update reads."""
        is_needed = self.should_module_be_updated
        if self.config.advantages_cross_agents:  # also policies not updated now
            is_needed = functools.partial(Learner.should_module_be_updated, self)
        module_ids = tuple(m for m in self.config.trained_module_ids if is_needed(m))
        for component in getattr(self._learner_connector, "connectors", []):
            if isinstance(component, TokenRows):
                component.module_ids = module_ids

    def _minibatches(
        self,
        data: dict[str, dict[str, Any]],
        seeds: Sequence[int],
        minibatch_size: int | None,
        env_steps: int,
    ) -> Iterator[MultiAgentBatch]:
        """Yield every episode exactly once per epoch, the same steps on every rank.

        The agents of an episode stay together, even with different policies.

        Args:
            data: Columns by module.
            seeds: Seed of each epoch's order.
            minibatch_size: Episodes of a minibatch over all Learners; None: all.
            env_steps: Environment steps of the batch.
        """
        owners = {
            mid: read(d, columns.MULTI_AGENT_EPISODE_INDEX) for mid, d in data.items()
        }
        # The empty array gives np.concatenate something to do without any rows.
        # [episodes]
        ids = np.unique(np.concatenate([*owners.values(), np.zeros(0, np.int64)]))
        by_source = episodes_by_source(data, owners, ids)
        steps = 1
        if minibatch_size:
            counts = [len(by_source[0]), len(ids)]
            sampled, total = all_reduce_sum(counts, self._device)
            # Episodes that were not sampled now are spread over the steps of the
            # others.
            steps = max(1, math.ceil((sampled or total) / minibatch_size))
        has_logps = all(Columns.ACTION_LOGP in d for d in data.values())
        assert has_logps or steps * len(seeds) == 1, (
            "Old log-probabilities are missing."
        )
        # Each Learner splits its own episodes into the same number of steps, so that
        # no collective call waits for a rank without one.
        for seed in seeds:
            rng = np.random.default_rng(seed)
            # array_split, because the number of episodes need not be a multiple of
            # steps; parts may be empty.
            splits = [
                np.array_split(rng.permutation(each), steps) for each in by_source
            ]
            for part in map(np.concatenate, zip(*splits, strict=True)):
                masks = {mid: np.isin(owners[mid], part) for mid in data}
                selected = {
                    mid: SampleBatch(select_rows(data[mid], np.flatnonzero(rows)))
                    for mid, rows in masks.items()
                    if rows.any()
                }
                # RLlib divides by env_steps in its metrics.
                yield MultiAgentBatch(selected, env_steps=max(1, env_steps // steps))

    # One optimiser step --------------------------------------------------------------

    @override(TorchLearner)
    def _uncompiled_update(
        self, batch: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, dict[str, torch.Tensor], dict[str, Any]]:
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)
        fwd_out: Any = {}
        losses: dict[str, torch.Tensor] = {}
        reached: list[torch.nn.Parameter] = []
        # Sorted: collective calls inside must come in the same order on every rank.
        for module_id in sorted(self.module.keys()):
            data = batch.get(module_id)
            fwd_out, losses[module_id], units = self._backward(module_id, data)
            if units:
                reached += self._parameters_of(module_id)
        # From here on the policy differs from the one that sampled.
        self._is_first_pass = False
        # Only parameters with rows: even a zero gradient lets momentum move the others.
        # A sum, not DDP's mean: each rank's loss already has the denominator of all
        # ranks.
        sum_gradients(reached)
        gradients = {
            ref: p.grad for ref, p in self._params.items() if p.grad is not None
        }
        if self._all_finite():
            self.apply_gradients(self.postprocess_gradients(gradients))
        return fwd_out, sum_tensors(losses), {}

    def _backward(
        self, module_id: str, data: dict[str, Any] | None
    ) -> tuple[Any, torch.Tensor, float]:
        """Accumulate the gradient of one module, micro-batch by micro-batch.

        Returns:
            The last forward pass, the loss, and the denominator over all Learners.
        """
        if module_id in self._non_llm_ids:
            return self._backward_non_llm(module_id, data)
        if module_id == self._scorer_id:
            return self._backward_scorer(data)
        config = self.config.get_config_for_module(module_id)
        coeffs = {s: self.source_coeff(s, config) for s in self._sources}
        of_source = self.by_source(data)
        if coeffs.get(PAIR):
            self.weigh_units(module_id, of_source.get(PAIR))
        local_units = [
            self._units_of_source(s, of_source[s], config)
            if coeff and s in of_source
            else 0.0
            for s, coeff in coeffs.items()
        ]
        # Before the early return: a rank without rows must join the collective call.
        *units, shown = all_reduce_sum(
            [*local_units, count_pictures(data)], self._device
        )
        total = sum(units)
        loss_sum = torch.zeros((), device=self._device)
        fwd_out = None
        # A rank without rows must join the passes of sharded layers as well.
        if total == 0 or (data is None and not self.is_sharded):
            return fwd_out, loss_sum, total
        denominators = {
            s: number / coeffs[s]
            for s, number in zip(coeffs, units, strict=True)
            if number
        }
        parts = self._parts_by_source(module_id, of_source, denominators, config)
        for part in equal_passes(parts, self._device, is_sharded=self.is_sharded):
            if part is None:
                loss = self._idle_loss(module_id, config)
            else:
                fwd_out, loss = self._pass(module_id, part, config)
            # Per micro-batch: frees its activations, and gradients add up in `.grad`.
            loss.backward()
            loss_sum = loss_sum + loss.detach()
        if self.is_sharded and not shown:
            self._drop_vision_gradients(module_id)
        return fwd_out, loss_sum, total

    def _parts(
        self, module_id: str, data: dict[str, Any], config: LLMConfig
    ) -> Iterator[dict[str, Any]]:
        """Yield the micro-batches that have trained tokens."""
        # Some loss components weigh whole sequences, which must then not be split.
        is_whole = module_id in self._uncut_sequences
        together = read(data, columns.EPISODE_INDEX) if is_whole else None
        max_tokens = config.micro_batch_tokens
        for _, part in micro_batches(
            data, max_tokens, together=together, packing=config.packing
        ):
            # E.g. rows of masked episodes: no gradient, so no forward pass.
            if count(part):
                yield part

    def _pass(
        self, module_id: str, part: dict[str, Any], config: LLMConfig
    ) -> tuple[Any, torch.Tensor]:
        """Return the forward pass of a micro-batch and its part of the loss."""
        self._add_padding(module_id, part)
        source = part.pop(SOURCE_OF_PART)
        fwd_out = self.module[module_id].unwrapped().forward_train(part)
        if Columns.ACTION_LOGP not in part:
            # Deferred old log-probabilities: those of this pass, i.e. ratios of
            # exactly 1.
            logp = fwd_out[Columns.ACTION_DIST_INPUTS].detach()[..., 0]
            add_old_logps(part, logp)
            if source == SAMPLED and module_id in self._mismatch_settings:
                self._correct_mismatch(module_id, part)
        if self._has_recorded_logps(source):
            add_old_logps(part, part[columns.BEHAVIOUR_LOGP])
        if source != SAMPLED:
            scores = fwd_out[Columns.ACTION_DIST_INPUTS]
            total = part[DENOMINATOR]
            if source == PAIR:
                logp = scores[..., 0]
                return fwd_out, self.preference_pass(module_id, part, logp, total)
            if source == FILE:
                return fwd_out, self._file_loss(module_id, part, scores, total)
            return fwd_out, self._replay_loss(module_id, config, part, scores, total)
        loss = self.compute_loss_for_module(
            module_id=module_id, config=config, batch=part, fwd_out=fwd_out
        )
        self._annotate_tokens(module_id, part, fwd_out)
        return fwd_out, loss

    def _units_of_source(
        self, source: str, data: dict[str, Any], config: LLMConfig
    ) -> float:
        """Return this Learner's part of the denominator of a source's rows."""
        if source == PAIR:
            return self.count_compared(data)
        return self._count_units(data, config)

    def _count_units(self, data: dict[str, Any], config: LLMConfig) -> float:
        """Return this Learner's part of the loss denominator."""
        return denominator(
            self._counted_tokens(data),
            read(data, columns.EPISODE_INDEX),
            config.loss_agg_mode,
        )

    def _counted_tokens(self, data: dict[str, Any]) -> np.ndarray:
        """Return the tokens of the loss denominator. bool [B, T]"""
        return read(data, Columns.LOSS_MASK)

    # After the steps -----------------------------------------------------------------

    @override(TorchLearner)
    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        self.keep_timesteps(timesteps)
        for module_id in self.module.keys():
            self._adapt_ref_kl(module_id)
        self._log_stats()
        self._log_annotations()
        super().after_gradient_based_update(timesteps=timesteps)
