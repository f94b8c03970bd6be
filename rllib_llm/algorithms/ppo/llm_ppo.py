"""LLMPPO: RLlib's PPO for language agents."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.algorithms.ppo.ppo import PPOConfig
from ray.rllib.utils.annotations import override
from typing_extensions import Self

from rllib_llm.algorithms.llm_algorithm import LLMAlgorithm
from rllib_llm.algorithms.llm_config import LLMConfigMixin
from rllib_llm.algorithms.settings import assign
from rllib_llm.errors import ConfigError


class LLMPPOConfig(LLMConfigMixin, PPOConfig):
    """Configuration of :class:`LLMPPO`.

    Example:
        >>> config = (
        ...     LLMPPOConfig()
        ...     .environment("guess_number-v0")
        ...     .rollouts(episodes_per_iteration=64)
        ...     .training(lr=1e-4)
        ... )
    """

    def __init__(self, algo_class: type[Any] | None = None):
        super().__init__(algo_class=algo_class or LLMPPO)
        self._set_llm_defaults()
        # fmt: off
        # __sphinx_doc_begin__
        self.lr = 1e-4
        self.gamma = 1.0
        self.lambda_ = 0.95
        self.gamma_token = 1.0
        self.lambda_token = 1.0
        self.whiten_advantages = True
        self.clip_param = 0.2
        self.vf_loss_coeff = 0.5
        self.use_kl_loss = False
        # __sphinx_doc_end__
        # fmt: on

    @override(PPOConfig)
    def training(
        self,
        *,
        gamma_token: float = NotProvided,
        lambda_token: float = NotProvided,
        whiten_advantages: bool = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the training settings: PPO's own, the shared ones, and these.

        ``gamma`` and ``lambda_`` apply between turns (RLlib's time steps).
        ``minibatch_size`` counts episodes over all Learners; None takes the whole
        iteration. Schedules (``lr``, ``entropy_coeff``) count turns.

        Args:
            gamma_token: Discount per token inside a turn.
            lambda_token: GAE's lambda per token inside a turn.
            whiten_advantages: Standardise advantages over trained tokens.
            kwargs: ``PPOConfig.training`` and ``LLMConfigMixin._llm_training``.
        """
        super().training(**self._llm_training(**kwargs))
        assign(
            self,
            gamma_token=gamma_token,
            lambda_token=lambda_token,
            whiten_advantages=whiten_advantages,
        )
        return self

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        if self.loss_agg_mode != "token-mean":
            raise ConfigError(
                f"loss_agg_mode={self.loss_agg_mode!r}: LLMPPO uses RLlib's own loss, "
                "which averages over tokens. Use 'token-mean', or GRPO."
            )
        if not self.use_critic:
            raise ConfigError(
                "use_critic=False: LLMPPO's credit comes from the critic. Use GRPO for "
                "training without one."
            )
        for name in ("gamma", "lambda_", "gamma_token", "lambda_token"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}={getattr(self, name)} must be in [0, 1].")

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.ppo.llm_ppo_learner import LLMPPOTorchLearner

        return LLMPPOTorchLearner


class LLMPPO(LLMAlgorithm):
    """PPO whose policy is a language model (Schulman et al. 2017, arXiv:1707.06347)."""

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> LLMPPOConfig:
        return LLMPPOConfig()
