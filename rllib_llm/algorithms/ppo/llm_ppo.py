"""LLMPPO: RLlib's PPO for language agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import PPOConfig
from ray.rllib.utils.annotations import override

from rllib_llm.advantages.turn_gae import GAE_LEVELS
from rllib_llm.algorithms.algorithm import LLMAlgorithm
from rllib_llm.algorithms.config.declarations import fluent_method, setting
from rllib_llm.algorithms.config.llm_config import LLMConfigMixin
from rllib_llm.algorithms.config.preferences import (
    PreferenceSettings,
    validate_preferences,
)
from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.algorithms.driver.mixed_pairs import MixesPairs
from rllib_llm.algorithms.ppo.check_critic import (
    validate_critic_settings,
    validate_whitening,
)
from rllib_llm.algorithms.scorer.check_scorer import validate_scorer
from rllib_llm.algorithms.scorer.scorer_settings import ScorerSettings
from rllib_llm.algorithms.scorer.trains_scorer import TrainsScorer
from rllib_llm.errors import ConfigError
from rllib_llm.losses.value_losses import VALUE_LOSSES
from rllib_llm.schema import Fraction, OneOf, PositiveFloat


class LLMPPOConfig(ScorerSettings, PreferenceSettings, LLMConfigMixin, PPOConfig):
    """Configuration of :class:`LLMPPO`.

    Example:
        >>> config = (
        ...     LLMPPOConfig()
        ...     .environment("guess_number-v0")
        ...     .rollouts(episodes_per_iteration=64)
        ...     .training(lr=1e-4)
        ... )
    """

    training = fluent_method(
        """Set the training settings.

        ``gamma`` and ``lambda_`` apply between turns (RLlib's time steps).
        ``minibatch_size`` counts episodes over all Learners; None takes the whole
        iteration. Schedules (``lr``, ``entropy_coeff``) count turns.
        """
    )

    lr = setting(1e-4)
    # A time step is a turn: RLlib's 0.99 would discount whole turns.
    gamma = setting(1.0)
    lambda_ = setting(0.95)
    clip_param = setting(0.2)
    vf_loss_coeff = setting(0.5)
    use_kl_loss = setting(False)

    gamma_token: Fraction = setting(1.0, "Discount per token inside a turn.")
    lambda_token: Fraction = setting(1.0, "GAE's lambda per token inside a turn.")
    gae_level: Annotated[str, OneOf(GAE_LEVELS)] = setting(
        "token",
        """"token": GAE over all tokens; "turn": turns are the steps, with one value
        and one advantage each (VL-DAC); "bilevel": GAE over turns, and over the tokens
        inside each (RAGEN).""",
    )
    lambda_critic: Fraction | None = setting(
        None,
        """Lambda of the value targets (VC-PPO, VAPO: 1.0); None: that of the
        advantages.""",
    )
    lambda_length_alpha: PositiveFloat | None = setting(
        None,
        """Lambda of the advantages is ``1 - 1 / (alpha * l)``, l the trained tokens of
        the episode (VAPO: 0.05); None: ``lambda_`` and ``lambda_token``.""",
    )
    whiten_advantages: bool = setting(
        True, "Standardise advantages over trained tokens."
    )
    whiten_by: Literal["batch", "agent"] = setting(
        "batch",
        """Standardise them over the whole "batch" of a policy, or within each "agent"
        (PAG's role-wise normalisation).""",
    )
    value_loss: Annotated[str, OneOf(VALUE_LOSSES)] = setting(
        "squared",
        """"squared" (capped at ``vf_clip_param``), "huber", or "bce": the critic
        outputs the logit of a return in [0, 1].""",
    )
    value_huber_delta: PositiveFloat = setting(
        1.0, 'Error beyond which "huber" is linear.'
    )
    vf_clip_range: PositiveFloat | None = setting(
        None,
        """Distance of a value from its old one beyond which the larger of both losses
        counts (PPO2's value clip); None: no bound.""",
    )

    def __init__(self, algo_class: type[Any] | None = None):
        super().__init__(algo_class=algo_class or LLMPPO)
        self._set_llm_defaults()

    @override(AlgorithmConfig)
    def validate(self) -> None:
        super().validate()
        validate_scorer(self)
        validate_preferences(self)
        if self.loss_agg_mode != "token-mean" and self.uses_rllib_loss:
            raise ConfigError(
                f"loss_agg_mode={self.loss_agg_mode!r}: LLMPPO uses RLlib's loss, "
                "which averages over tokens. Use 'token-mean', or choose a policy_loss."
            )
        validate_whitening(self)
        for module_id in self.trained_module_ids:
            module_config = self.get_config_for_module(module_id)
            validate_critic_settings(module_config)
            if module_config.use_kl_loss and not module_config.uses_rllib_loss:
                raise ConfigError(
                    "use_kl_loss=True is a part of RLlib's loss, which policy_loss, "
                    "loss_terms and settings of the critic's loss replace. Leave it "
                    "out; ref_kl_coeff is the KL to the reference."
                )
            if module_config.policy_loss is not None:
                why = "policy_loss has settings of its own. Set it there."
                refuse_without_effect(module_config, ("clip_param",), why)

    @property
    def uses_rllib_loss(self) -> bool:
        """True if the loss is RLlib's, unmodified."""
        return (
            self.policy_loss is None
            and not self.loss_terms
            and self.value_loss == "squared"
            and self.vf_clip_range is None
            and self.gae_level != "turn"
        )

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type[Any]:
        from rllib_llm.algorithms.ppo.llm_ppo_learner import LLMPPOTorchLearner

        return LLMPPOTorchLearner


class LLMPPO(TrainsScorer, MixesPairs, LLMAlgorithm):
    """PPO whose policy is a language model (Schulman et al. 2017, arXiv:1707.06347)."""

    @classmethod
    @override(LLMAlgorithm)
    def get_default_config(cls) -> LLMPPOConfig:
        return LLMPPOConfig()
