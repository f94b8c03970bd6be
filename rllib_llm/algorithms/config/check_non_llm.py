"""Specification and validation of non-LLM policies."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_llm.algorithms.config.rl_module_spec import model_config_of
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.env_runner.non_llm_spaces import non_llm_spaces
from rllib_llm.errors import ConfigError
from rllib_llm.policy_mapping import mapped_policies

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


def non_llm_specs(
    config: LLMConfig, *, inference_only: bool
) -> dict[str, RLModuleSpec]:
    """Return the complete specification of each non-LLM policy, by ModuleID."""
    from rllib_llm.env_runner.non_llm_policies import encoded_space

    specs = {}
    for module_id, (reads, acts) in non_llm_spaces(config).items():
        spec = specs[module_id] = copy.copy(config.rl_module_of(module_id))
        spec.observation_space, spec.action_space = encoded_space(reads), acts
        # RLlib's order: first .rl_module(model_config=), then the policy's own config.
        spec.model_config = config.model_config | model_config_of(spec)
        spec.inference_only = inference_only
    return specs


def validate_non_llm(config: LLMConfig) -> None:
    """Check that non-LLM policies, agents and algorithm are compatible.

    Raises:
        ConfigError: With the agent or policy, the rule, and the remedy.
    """
    env = config.make_text_env()
    agents = agents_of(env) or []
    numbers = [a for a in agents if env.number_spaces(a) is not None]
    env.close()
    non_llm_ids = config.non_llm_module_ids
    mapped = mapped_policies(config, agents) if numbers else {}
    for agent in numbers:
        if mapped[agent] not in non_llm_ids:
            raise ConfigError(
                f"The agent {agent!r} has numeric observations and actions, but "
                f"policy_mapping_fn gives it the text policy {mapped[agent]!r}. Map it "
                "to a policy with rl_module: {}, or let the environment render text."
            )
    if not non_llm_ids:
        return
    non_llm_spaces(config)
    # Everything here exists for language models; RLlib's PPO is faster and complete.
    if not config.llm_module_ids:
        raise ConfigError(
            f"The policies {', '.join(config.module_ids)} include no language model. "
            "Use RLlib's PPO for RLModules alone."
        )
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            f"The RLModule {non_llm_ids[0]!r} beside language models needs "
            f"LLMEnvRunner, not {config.env_runner_cls.__name__}. Leave env_runner_cls "
            "out."
        )
    if config.trained_non_llm_ids and not config.use_critic:
        raise ConfigError(
            f"The RLModule {config.trained_non_llm_ids[0]!r} is trained by RLlib's PPO "
            f"with a critic; {type(config).__name__.removesuffix('Config')} has none. "
            "Use LLMPPO or MARFT, or leave it out of policies_to_train."
        )
