"""Checks of ``env_runners(env_runner_cls=...)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

# Settings that RLlib's stock EnvRunners read and LLMEnvRunner does not, and why.
_OF_STOCK_RUNNERS = {
    "gym_env_vectorize_mode": (
        "LLMEnvRunner plays each environment in a thread. Use rollouts.env_processes "
        "for a process each, or leave it out."
    ),
    "restart_failed_sub_environments": (
        "LLMEnvRunner plays a failed episode again in a new environment. Use "
        "rollouts.max_retries."
    ),
    "metrics_num_episodes_for_smoothing": (
        "LLMEnvRunner reports means over the episodes of an iteration. Leave it out."
    ),
    "evaluation_force_reset_envs_before_iteration": (
        "LLMEnvRunner never continues an episode in a later iteration. Leave it out."
    ),
}


def validate_env_runner(config: LLMConfig) -> None:
    """Check settings that the class of the EnvRunners does not read.

    Raises:
        ConfigError: With the value, the rule and the remedy.
    """
    from ray.rllib.env.external.env_runner_server_for_external_inference import (
        EnvRunnerServerForExternalInference,
    )

    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    if issubclass(config.env_runner_cls, EnvRunnerServerForExternalInference):
        raise ConfigError(
            f"env_runner_cls={config.env_runner_cls.__name__} takes episodes without "
            "the record of sampled tokens that the Learner reads. Leave it out; "
            "env='external-v0' is for environments in other programs."
        )
    stock = not issubclass(config.env_runner_cls, LLMEnvRunner)
    if stock and config.group_size > 1:
        raise ConfigError(
            f"group_size={config.group_size} needs LLMEnvRunner; RLlib's "
            f"{config.env_runner_cls.__name__} cannot give rollouts one seed. Leave "
            "env_runner_cls out."
        )
    if stock:
        why = f"{config.env_runner_cls.__name__} samples no tasks. Use LLMEnvRunner."
        components = ("rewards", "reward_transforms", "filters", "curriculum", "fork")
        others = ("prompt_text", "env_processes", "sample_ahead", "save_episodes")
        refuse_without_effect(config, (*components, *others), why)
        return
    for name, why in _OF_STOCK_RUNNERS.items():
        refuse_without_effect(config, (name,), why)
