"""Checks of LLMPPO's settings of the critic and of GAE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig


def validate_critic_settings(config: LLMPPOConfig) -> None:
    """Refuse settings of one policy that other settings make ineffective.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    level = config.gae_level
    if config.whiten_by == "agent" and not config.is_multi_agent:
        raise ConfigError(
            f"whiten_by='agent': {config.env!r} has one agent, so that it equals "
            "'batch'. Leave it out, or choose an environment with several agents."
        )
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
            "lambda_length_alpha replaces it. Leave it out.",
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
