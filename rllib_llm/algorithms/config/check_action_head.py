"""Checks of policies that choose among admissible actions (``head="score"``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.config.without_effect import refuse_without_effect
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.envs.admissible import EXPERT_PROBS, admissible_actions, expert_probs
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.policy_mapping import mapped_policies

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig

_SAMPLING_SETTINGS = ("max_new_tokens", "stop_strings")
_ENGINE_SETTINGS = ("engine_forward", "kv_cache_gib", "num_speculative_tokens")
_TOKEN_GAE_SETTINGS = (
    "gamma_token",
    "lambda_token",
    "gae_level",
    "lambda_length_alpha",
)


def validate_action_heads(config: LLMConfig) -> None:
    """Check settings, algorithm and environment of scoring policies.

    Raises:
        ConfigError: With the value, the rule, and the remedy.
    """
    configs = {m: config.get_config_for_module(m) for m in config.llm_module_ids}
    heads = {m: c.action_head for m, c in configs.items()}
    for module_id, settings in configs.items():
        if heads[module_id] == "score":
            _validate(settings)
        else:
            why = "head='generate' scores nothing. Use head='score', or leave it out."
            refuse_without_effect(settings, ("score_norm",), why)
    scoring = {m for m, head in heads.items() if head == "score"}
    if not scoring:
        return
    # If other policies generate text, the engine's settings have an effect.
    if len(scoring) == len(heads):
        why = "head='score' uses no engine. Leave it out."
        refuse_without_effect(config, _ENGINE_SETTINGS, why)
    _validate_env(config, scoring)


def _validate(config: LLMConfig) -> None:
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
    refuse_without_effect(config, _SAMPLING_SETTINGS, why)
    # GRPO has no such settings.
    of_ppo = tuple(name for name in _TOKEN_GAE_SETTINGS if hasattr(config, name))
    why = "with head='score' a turn is one step of gamma and lambda_. Leave it out."
    refuse_without_effect(config, of_ppo, why)


def _validate_env(config: LLMConfig, scoring: set[str]) -> None:
    """Reset each environment once and check that it lists the policies' actions."""
    for name, env in config.make_each_env().items():
        # The first list is checked before training; later ones by the EnvRunner.
        # Training's split, since the test split may have other instances.
        result: Any = env.reset(seed=0, options={"split": "train"})
        agents = agents_of(env)
        if agents is None:
            infos = {config.module_ids[0]: result[1]}
        else:
            mapped = mapped_policies(config, agents)
            infos = {
                agent: result.infos.get(agent, {})
                for agent in result.observations
                if mapped[agent] in scoring
            }
        env.close()
        for agent_id, info in infos.items():
            where = f"{name!r} after reset" + (f" ({agent_id})" if agents else "")
            module_id = agent_id if agents is None else mapped[agent_id]
            _check_info(config.get_config_for_module(module_id), info, where)


def _check_info(config: LLMConfig, info: dict[str, Any], where: str) -> None:
    """Check what an environment reports to a scoring policy.

    Args:
        config: The policy's config.
        info: Info of a reset.
        where: Environment and agent, for the message.
    """
    try:
        actions = admissible_actions(info, where)
        is_reported = expert_probs(info, actions, where) is not None
    except EnvContractError as error:
        raise ConfigError(str(error)) from error
    if config.components_need("expert") and not is_reported:
        raise ConfigError(
            f"A loss term has teacher='expert', but {where} has no info["
            f"{EXPERT_PROBS!r}]. Set env_config.report_expert to true if it is a "
            "TextEnv with expert_action(), let it report them, or use "
            "teacher='reference'."
        )
