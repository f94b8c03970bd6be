"""What all updates have in common."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import NotProvided

from rllib_llm.algorithms.settings.assign import assign


class TrainingSettings:
    """Defaults and fluent method of ``training``."""

    def _set_training_defaults(self) -> None:
        self.critic_lr: float | None = None
        self.critic_warmup_iters = 0
        self.weight_decay = 0.0
        self.micro_batch_tokens: int | None = 8192
        self.old_logps = "learner"
        self.nan_policy = "skip"
        self.loss_agg_mode = "token-mean"
        self.loss_agg_constant: float | None = None
        self.ref_kl_coeff = 0.0
        self.ref_kl_estimator = "k3"
        self.ref_kl_in = "loss"
        self.ref_kl_target: float | None = None

    def _llm_training(
        self,
        *,
        critic_lr: float | None = NotProvided,
        critic_warmup_iters: int = NotProvided,
        weight_decay: float = NotProvided,
        micro_batch_tokens: int | None = NotProvided,
        old_logps: str = NotProvided,
        nan_policy: str = NotProvided,
        loss_agg_mode: str = NotProvided,
        loss_agg_constant: float | None = NotProvided,
        ref_kl_coeff: float = NotProvided,
        ref_kl_estimator: str = NotProvided,
        ref_kl_in: str = NotProvided,
        ref_kl_target: float | None = NotProvided,
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
            old_logps=old_logps,
            nan_policy=nan_policy,
            loss_agg_mode=loss_agg_mode,
            loss_agg_constant=loss_agg_constant,
            ref_kl_coeff=ref_kl_coeff,
            ref_kl_estimator=ref_kl_estimator,
            ref_kl_in=ref_kl_in,
            ref_kl_target=ref_kl_target,
            minibatch_size=minibatch_size,
            num_epochs=num_epochs,
        )
        return kwargs
