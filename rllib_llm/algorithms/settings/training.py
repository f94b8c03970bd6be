"""What all updates have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.settings.assign import assign
from rllib_llm.pieces.registry import Spec

if TYPE_CHECKING:
    from rllib_llm.pieces.token_pieces import TokenPieces


class TrainingSettings:
    """Defaults and fluent method of ``training``."""

    def _set_training_defaults(self) -> None:
        self.critic_lr: float | None = None
        self.critic_warmup_iters = 0
        self.weight_decay = 0.0
        self.micro_batch_tokens: int | None = 4096
        self.head_chunk_tokens: int | None = None
        self.matmul_precision = "auto"
        self.old_logps = "learner"
        self.tis: str | None = "auto"
        self.tis_clip = 2.0
        self.is_mask_low: float | None = None
        self.is_mask_high: float | None = None
        self.is_sequence_mask_low: float | None = None
        self.is_sequence_mask_high: float | None = None
        self.nan_policy = "skip"
        self.loss_agg_mode = "token-mean"
        self.loss_agg_constant: float | None = None
        self.ref_kl_coeff = 0.0
        self.ref_kl_estimator = "k3"
        self.ref_kl_clip: float | None = 10.0
        self.ref_kl_in = "loss"
        self.ref_kl_target: float | None = None
        self.policy_loss: Spec | None = None
        self.loss_terms: Sequence[Spec] = ()
        self.token_transforms: Sequence[Spec] = ()
        self.team_share = 0.0

    def _llm_training(
        self,
        *,
        critic_lr: float | None = NotProvided,
        critic_warmup_iters: int = NotProvided,
        weight_decay: float = NotProvided,
        micro_batch_tokens: int | None = NotProvided,
        head_chunk_tokens: int | None = NotProvided,
        matmul_precision: str = NotProvided,
        old_logps: str = NotProvided,
        tis: str | None = NotProvided,
        tis_clip: float = NotProvided,
        is_mask_low: float | None = NotProvided,
        is_mask_high: float | None = NotProvided,
        is_sequence_mask_low: float | None = NotProvided,
        is_sequence_mask_high: float | None = NotProvided,
        nan_policy: str = NotProvided,
        loss_agg_mode: str = NotProvided,
        loss_agg_constant: float | None = NotProvided,
        ref_kl_coeff: float = NotProvided,
        ref_kl_estimator: str = NotProvided,
        ref_kl_clip: float | None = NotProvided,
        ref_kl_in: str = NotProvided,
        ref_kl_target: float | None = NotProvided,
        policy_loss: Spec | None = NotProvided,
        loss_terms: Sequence[Spec] = NotProvided,
        token_transforms: Sequence[Spec] = NotProvided,
        team_share: float = NotProvided,
        minibatch_size: int | None = NotProvided,
        num_epochs: int = NotProvided,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Take the training settings that all algorithms share; return the others."""
        assign(
            self,
            critic_lr=critic_lr,
            critic_warmup_iters=critic_warmup_iters,
            weight_decay=weight_decay,
            micro_batch_tokens=micro_batch_tokens,
            head_chunk_tokens=head_chunk_tokens,
            matmul_precision=matmul_precision,
            old_logps=old_logps,
            tis=tis,
            tis_clip=tis_clip,
            is_mask_low=is_mask_low,
            is_mask_high=is_mask_high,
            is_sequence_mask_low=is_sequence_mask_low,
            is_sequence_mask_high=is_sequence_mask_high,
            nan_policy=nan_policy,
            loss_agg_mode=loss_agg_mode,
            loss_agg_constant=loss_agg_constant,
            ref_kl_coeff=ref_kl_coeff,
            ref_kl_estimator=ref_kl_estimator,
            ref_kl_clip=ref_kl_clip,
            ref_kl_in=ref_kl_in,
            ref_kl_target=ref_kl_target,
            policy_loss=policy_loss,
            loss_terms=loss_terms,
            token_transforms=token_transforms,
            team_share=team_share,
            minibatch_size=minibatch_size,
            num_epochs=num_epochs,
        )
        return kwargs

    # What follows from them ----------------------------------------------------------

    @property
    def engine_is_exact(self) -> bool:
        """Whether the engine's log-probabilities are the learner's, up to rounding.

        True of the embedded engine in float32: the same weights, the same arithmetic.
        """
        return (
            self.generation_engine == "torch"
            and self.lm_dtype == "float32"
            and self.lm_autocast is None
        )

    def build_token_pieces(self) -> TokenPieces:
        """Return what one policy's loss is made of (docs/losses.md)."""
        from rllib_llm.pieces.token_pieces import TokenPieces

        return TokenPieces(self.policy_loss, self.loss_terms, self.token_transforms)

    def pieces_need(self, what: str) -> bool:
        """Whether a chosen piece asks for ``what``; see pieces.token_batch.NEEDS."""
        return what in self.build_token_pieces().needs

    def resolved_tis(self) -> str | None:
        """Return the level of truncated importance sampling, None for none."""
        if self.tis != "auto":
            return self.tis
        is_needed = self.old_logps == "learner" and not self.engine_is_exact
        return "token" if is_needed else None

    def mismatch_settings(self) -> dict[str, Any] | None:
        """Return the settings of ``mismatch_weights``, None if nothing is corrected."""
        token_band = (self.is_mask_low, self.is_mask_high)
        sequence_band = (self.is_sequence_mask_low, self.is_sequence_mask_high)
        settings = {
            "tis": self.resolved_tis(),
            "tis_clip": self.tis_clip,
            "token_band": token_band,
            "sequence_band": sequence_band,
        }
        is_off = settings["tis"] is None and not any((*token_band, *sequence_band))
        return None if is_off else settings

    @property
    def old_logps_may_wait(self) -> bool:
        """Whether the first training pass can tell the old log-probabilities.

        If it is the only one of its update, they are those of the policy it trains. Not
        so where they are needed before it, or for whole sequences.
        """
        by_sequence = self.is_sequence_mask_low or self.is_sequence_mask_high
        return (
            self.old_logps == "learner"
            and not (self.uses_reference and self.ref_kl_in == "reward")
            and not self.pieces_need("scores")
            and not (by_sequence or self.resolved_tis() == "sequence")
        )
