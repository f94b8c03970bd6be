"""Checks of the mapping from agents to policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.env_runner.agents import agents_of, program_envs
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.policy_mapping import MappedPolicies, mapped_policies

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

# RLlib's settings of multi_agent that belong to its old API stack.
_OLD_STACK_SETTINGS = (
    "count_steps_by",
    "policy_map_capacity",
    "observation_fn",
    "policy_states_are_swappable",
)


def validate_policies(config: LLMConfig) -> None:
    """Check that agents and policies are compatible.

    Raises:
        ConfigError: With the agent or policy, the rule, and the remedy.
    """
    env = config.make_text_env()
    agents = agents_of(env)
    if config.env_processes and program_envs(env):
        raise ConfigError(
            f"env_processes=True, but {config.env!r} runs its programs itself: give a "
            "command line as the program to run it as a process. Set env_processes to "
            "False."
        )
    env.close()
    if agents is None:
        if config.is_multi_agent:
            raise ConfigError(
                f"multi_agent(policies={list(config.module_ids)}), but {config.env!r} "
                "has a single agent. Use an environment of PettingZoo, or leave "
                ".multi_agent() out."
            )
        return
    if len(config.llm_module_ids) > 1 and config.generation_engine != "torch":
        raise ConfigError(
            f"engine={config.generation_engine!r} holds the weights of one policy, but "
            f"{', '.join(config.llm_module_ids)} are language models. Use "
            "engine='torch', or one policy for all agents."
        )
    refuse_without_effect(
        config,
        _OLD_STACK_SETTINGS,
        "LLMEnvRunner and the Learners do not read it. Leave it out.",
    )
    mapped = mapped_policies(config, agents)
    # The mapping below is one example only.
    if not isinstance(config.policy_mapping_fn, MappedPolicies):
        return  # a function may map agents differently in other episodes
    for module_id in (*config.trained_module_ids, *config.trained_non_llm_ids):
        if module_id not in mapped.values():
            raise ConfigError(
                f"The policy {module_id!r} is to be trained, but policy_mapping_fn "
                f"gives it no agent: {mapped}. Map one to it, or leave it out of "
                "policies_to_train."
            )


def validate_trained(config: LLMConfig) -> None:
    """Check ``policies_to_train`` (RLlib's check gives no remedy).

    Raises:
        ConfigError: With the policy, the rule, and the remedy.
    """
    # RLlib's function is checked by RLlib alone, when it is called.
    names = config.policies_to_train
    if names is None or callable(names):
        names = ()
    for module_id in names:
        if module_id not in config.module_ids:
            raise ConfigError(
                f"policies_to_train names {module_id!r}, which is not a policy. "
                f"{did_you_mean(module_id, config.module_ids)}"
            )
        if config.script_of(module_id) is not None:
            raise ConfigError(
                f"policies_to_train names {module_id!r}, which is scripted: there "
                "is nothing to train. Leave it out."
            )
    if not (config.trained_module_ids or config.trained_non_llm_ids):
        raise ConfigError(
            "No policy is trained. Name one that is a language model or an RLModule in "
            "policies_to_train."
        )
