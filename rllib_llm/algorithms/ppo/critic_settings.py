"""Checks of how LLMPPO's critic learns and gives credit."""

from __future__ import annotations

from typing import Any

from rllib_llm.algorithms.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.objectives.critic_losses import VALUE_LOSSES
from rllib_llm.objectives.turn_gae import GAE_LEVELS


def validate_critic_settings(config: Any) -> None:
    """Check the settings of one policy.

    Raises:
        ConfigError: Naming the value, the rule, and the remedy.
    """
    for name, choices in (("gae_level", GAE_LEVELS), ("value_loss", VALUE_LOSSES)):
        value = getattr(config, name)
        if value not in choices:
            hint = did_you_mean(str(value), choices)
            raise ConfigError(
                f"{name}={value!r} must be one of {', '.join(choices)}. {hint}"
            )
    critic = config.lambda_critic
    if critic is not None and not 0.0 <= critic <= 1.0:
        raise ConfigError(f"lambda_critic={critic} must be in [0, 1], or None.")
    for name in ("lambda_length_alpha", "vf_clip_range", "value_huber_delta"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ConfigError(f"{name}={value} must be above 0.")
    _refuse_idle(config)


def _refuse_idle(config: Any) -> None:
    level = config.gae_level
    if level == "turn":
        refuse_without_effect(
            config,
            ("gamma_token", "lambda_token", "lambda_length_alpha"),
            "gae_level='turn' has one step per turn. Leave it out.",
        )
    if level == "bilevel":
        refuse_without_effect(
            config,
            ("lambda_length_alpha",),
            "gae_level='bilevel' has lambda_ and lambda_token. Leave it out.",
        )
    if config.lambda_length_alpha is not None:
        refuse_without_effect(
            config,
            ("lambda_", "lambda_token"),
            "lambda_length_alpha takes its place. Leave it out.",
        )
    if config.value_loss != "squared" or config.vf_clip_range is not None:
        refuse_without_effect(
            config,
            ("vf_clip_param",),
            "it caps the plain squared error. Leave it out, or value_loss and "
            "vf_clip_range.",
        )
    if config.value_loss == "bce":
        refuse_without_effect(
            config, ("vf_clip_range",), "value_loss='bce' has none. Leave it out."
        )
    if config.value_loss != "huber":
        refuse_without_effect(
            config, ("value_huber_delta",), "value_loss is not 'huber'. Leave it out."
        )
