"""Checks of LLMPPO's settings of the critic and of GAE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.env_runner.agents import agents_of

if TYPE_CHECKING:
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig


def validate_critic_settings(config: LLMPPOConfig) -> None:
    """Refuse settings of one policy that other settings make ineffective.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
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


def validate_whitening(config: LLMPPOConfig) -> None:
    """Refuse advantages by agent in an environment with one agent.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    if config.whiten_by != "agent":
        return
    for env in config.make_each_env().values():
        agents = agents_of(env)
        env.close()
        if agents is None:
            why = "the environment has one agent. Leave it out."
            refuse_without_effect(config, ("whiten_by",), why)
