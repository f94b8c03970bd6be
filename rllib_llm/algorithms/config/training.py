"""Settings of ``training`` that all algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt, Interval
from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.config.assign import stores_settings
from rllib_llm.components.registry import Spec, Specs
from rllib_llm.losses.aggregation import LOSS_AGGREGATIONS
from rllib_llm.losses.importance_correction import TIS_LEVELS
from rllib_llm.losses.kl import KL_ESTIMATORS
from rllib_llm.rllib_bases import RLlibConfig
from rllib_llm.schema import (
    Fraction,
    Hint,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
)

if TYPE_CHECKING:
    pass

_BAND = Hint(
    "The band of kept ratios must include 1, e.g. 0.5 and 5.0; None leaves an end open."
)
BelowOne = Annotated[float, Interval(gt=0, lt=1), _BAND]
AboveOne = Annotated[float, Gt(1), _BAND]


class TrainingSettings(RLlibConfig):
    """Defaults and fluent method of ``training``."""

    def _set_training_defaults(self) -> None:
        self.critic_lr: float | None = None
        self.critic_warmup_iters = 0
        self.weight_decay = 0.0
        # Token positions with padding, not rows: memory grows with positions.
        self.micro_batch_tokens: int | None = 4096
        self.head_chunk_tokens: int | None = None
        self.matmul_precision = "auto"
        # Not the engine's: the requests of a decoding batch depend on timing, and
        # change the last bits of its log-probabilities.
        self.old_logps = "learner"
        self.tis: str | None = "auto"
        self.tis_clip = 2.0
        # Ratios of learner to engine, around 1. None: no bound.
        self.is_mask_low: float | None = None
        self.is_mask_high: float | None = None
        self.is_sequence_mask_low: float | None = None
        self.is_sequence_mask_high: float | None = None
        self.nan_policy = "skip"
        # RLlib's two checks would repeat that of nan_policy, and need memory.
        self.torch_skip_nan_gradients = True
        self.loss_agg_mode = "token-mean"
        self.loss_agg_constant: float | None = None
        self.ref_kl_coeff = 0.0
        # Of the three, k1 has no expected gradient in the loss; k3 is never negative.
        self.ref_kl_estimator = "k3"
        # k3 grows exponentially in the log-ratio: one token could dominate the step.
        self.ref_kl_clip: float | None = 10.0
        self.ref_kl_in = "loss"
        self.ref_kl_target: float | None = None
        self.policy_loss: Spec | None = None
        self.loss_terms: Sequence[Spec] = ()
        self.token_advantage_transforms: Sequence[Spec] = ()
        self.shared_reward_fraction = 0.0

    @stores_settings()
    def _llm_training(
        self,
        *,
        critic_lr: PositiveFloat | None = NotProvided,
        critic_warmup_iters: NonNegativeInt = NotProvided,
        weight_decay: NonNegativeFloat = NotProvided,
        micro_batch_tokens: PositiveInt | None = NotProvided,
        head_chunk_tokens: PositiveInt | None = NotProvided,
        matmul_precision: Literal["auto", "highest", "high", "medium"] = NotProvided,
        old_logps: Literal["learner", "engine"] = NotProvided,
        tis: Annotated[str, OneOf(("auto", *TIS_LEVELS))] | None = NotProvided,
        tis_clip: PositiveFloat = NotProvided,
        is_mask_low: BelowOne | None = NotProvided,
        is_mask_high: AboveOne | None = NotProvided,
        is_sequence_mask_low: BelowOne | None = NotProvided,
        is_sequence_mask_high: AboveOne | None = NotProvided,
        nan_policy: Literal["skip", "error"] = NotProvided,
        loss_agg_mode: Annotated[str, OneOf(LOSS_AGGREGATIONS)] = NotProvided,
        loss_agg_constant: PositiveFloat | None = NotProvided,
        ref_kl_coeff: NonNegativeFloat = NotProvided,
        ref_kl_estimator: Annotated[str, OneOf(KL_ESTIMATORS)] = NotProvided,
        ref_kl_clip: PositiveFloat | None = NotProvided,
        ref_kl_in: Literal["loss", "reward"] = NotProvided,
        ref_kl_target: PositiveFloat | None = NotProvided,
        policy_loss: Spec | None = NotProvided,
        loss_terms: Specs = NotProvided,
        token_advantage_transforms: Specs = NotProvided,
        shared_reward_fraction: Fraction = NotProvided,
        minibatch_size: PositiveInt | None = NotProvided,
        num_epochs: PositiveInt = NotProvided,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Assign the training settings that all algorithms share; return the others.

        Args:
            critic_lr: Learning rate of the critic; None: ``lr``.
            critic_warmup_iters: Iterations at the start in which only the critic is
                trained.
            weight_decay: AdamW's decoupled weight decay.
            micro_batch_tokens: Most tokens per forward pass of the Learner, padding
                included; None: the whole minibatch. Gradients do not depend on it.
            head_chunk_tokens: Tokens whose logits are computed at once, to save memory
                with large vocabularies; None: all of a micro-batch.
            matmul_precision: Precision of float32 products in the Learner (torch's
                ``set_float32_matmul_precision``); "auto" is "highest", computed faster
                where that changes no result.
            old_logps: Source of the old log-probabilities: the "learner", which
                recomputes them, or the "engine", which sampled.
            tis: Truncated importance sampling between engine and learner per "token"
                or "sequence"; "auto": per token where the engine is not exact; None:
                off.
            tis_clip: Largest weight of a token or sequence under ``tis``.
            is_mask_low: Ratio of learner to engine below which tokens are masked; None:
                no bound.
            is_mask_high: Ratio above which tokens are masked; None: no bound.
            is_sequence_mask_low: As ``is_mask_low``, for whole sequences.
            is_sequence_mask_high: As ``is_mask_high``, for whole sequences.
            nan_policy: A minibatch with a non-finite loss or gradient is skipped and
                counted ("skip"), or ends the run ("error").
            loss_agg_mode: Aggregation of token losses (verl ``loss_agg_mode``).
            loss_agg_constant: Length in tokens by which "seq-mean-token-sum-norm"
                divides.
            ref_kl_coeff: Coefficient of the KL divergence to the frozen reference
                policy; 0: no reference.
            ref_kl_estimator: Estimator of the KL divergence, "k1", "k2" or "k3".
            ref_kl_clip: Largest KL of one token by "k3" (verl: 10); None: no bound.
            ref_kl_in: Whether it is part of the "loss" or of the "reward".
            ref_kl_target: KL to which ``ref_kl_coeff`` is adapted; None: fixed.
            policy_loss: Component that replaces the algorithm's loss (docs/losses.md).
            loss_terms: Components that are added to the loss.
            token_advantage_transforms: Components that change advantages per token.
            shared_reward_fraction: Share of every reward that all agents of the
                episode divide equally.
            minibatch_size: Episodes per optimiser step, over all Learners; None: all
                of the iteration.
            num_epochs: Passes over an iteration's episodes.
            kwargs: Settings of RLlib.
        """
        return kwargs
