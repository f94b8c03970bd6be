"""Checks of policies that choose among admissible actions (``head="score"``)."""

from __future__ import annotations

from typing import Any

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.envs.admissible import admissible_actions
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.policy_mapping import mapped_policies

_OF_SAMPLED_TURNS = ("max_new_tokens", "stop_strings")
_OF_ENGINES = ("engine_forward", "kv_cache_gib")
_OF_TOKEN_ADVANTAGES = (
    "gamma_token",
    "lambda_token",
    "gae_level",
    "lambda_length_alpha",
)


def validate_action_heads(config: Any) -> None:
    """Check settings, algorithm and environment.

    Raises:
        ConfigError: Naming the value, the rule, and the remedy.
    """
    own = {m: config.get_config_for_module(m) for m in config.llm_module_ids}
    heads = {m: c.action_head for m, c in own.items()}
    for module_id, settings in own.items():
        if heads[module_id] == "score":
            _validate(settings)
        else:
            why = "head='generate' scores nothing. Use head='score', or leave it out."
            refuse_without_effect(settings, ("score_norm",), why)
    scoring = {m for m, head in heads.items() if head == "score"}
    if not scoring:
        return
    if len(scoring) == len(heads):
        why = "head='score' uses no engine. Leave it out."
        refuse_without_effect(config, _OF_ENGINES, why)
    _validate_env(config, scoring)


def _validate(config: Any) -> None:
    """Check the settings of one policy."""
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner

    if config.generation_engine != "torch":
        raise ConfigError(
            f"engine={config.generation_engine!r} samples tokens, but head='score' "
            "chooses whole actions with the policy itself. Leave engine out, or use "
            "head='generate'."
        )
    if not issubclass(config.env_runner_cls, LLMEnvRunner):
        raise ConfigError(
            f"head='score' needs LLMEnvRunner; RLlib's {config.env_runner_cls.__name__}"
            " samples text. Leave env_runner_cls out, or use head='generate'."
        )
    why = "head='score' chooses whole actions. Leave it out, or use head='generate'."
    refuse_without_effect(config, _OF_SAMPLED_TURNS, why)
    of_ppo = tuple(name for name in _OF_TOKEN_ADVANTAGES if hasattr(config, name))
    why = "with head='score' a turn is one step of gamma and lambda_. Leave it out."
    refuse_without_effect(config, of_ppo, why)


def _validate_env(config: Any, scoring: set[str]) -> None:
    """Reset the environment once and look for the actions of these policies."""
    env = config.make_text_env()
    told = env.reset(seed=0, options={"split": "train"})
    agents = agents_of(env)
    if agents is None:
        infos = {config.module_ids[0]: told[1]}
    else:
        mapped = mapped_policies(config, agents)
        infos = {
            agent: told.infos.get(agent, {})
            for agent in told.observations
            if mapped[agent] in scoring
        }
    env.close()
    for who, info in infos.items():
        where = f"{config.env!r} after reset" + (f" ({who})" if agents else "")
        try:
            admissible_actions(info, where)
        except EnvContractError as error:
            raise ConfigError(str(error)) from error
