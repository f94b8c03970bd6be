"""Checks of the reward ``gain``, which plays tasks again under other options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.driver.rewards_filters_curriculum import DriverComponents
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.errors import ConfigError

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def validate_baselines(config: LLMConfig) -> None:
    """Check that the rollouts of the reward ``gain`` can be sampled.

    Raises:
        ConfigError: If they cannot.
    """
    if not DriverComponents(config).has_gains:
        return
    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            "The reward 'gain' repeats tasks, which RLlib's stock EnvRunners cannot. "
            "Leave env_runner_cls unset, or leave the reward out."
        )
    if config.sample_ahead:
        raise ConfigError(
            f"env_runners.sample_ahead={config.sample_ahead} keeps EnvRunners busy, "
            "but the reward 'gain' plays tasks again between sampling and the update. "
            "Set it to 0, or leave the reward out."
        )
    if getattr(config, "needs_greedy", False):
        raise ConfigError(
            "Greedy rollouts have no reward 'gain'. Use another advantage_baseline."
        )
