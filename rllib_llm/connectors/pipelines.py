"""Assembly of the connector pipelines from the configuration.

Connectors that a user adds through RLlib's own settings come first (env-to-module,
learner) or last (module-to-env), as in RLlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from ray.rllib.connectors.env_to_module import EnvToModulePipeline
from ray.rllib.connectors.learner import LearnerConnectorPipeline
from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline

from rllib_llm.connectors.env_to_module import RenderChat
from rllib_llm.connectors.learner.central_rows import CentralRows
from rllib_llm.connectors.learner.loss_mask import PatternMask
from rllib_llm.connectors.learner.non_llm_batches import NonLLMBatches
from rllib_llm.connectors.learner.score_rows import ScoreRows
from rllib_llm.connectors.learner.token_gae import GAESettings, TokenGAE
from rllib_llm.connectors.learner.token_rows import RowSettings, TokenRows
from rllib_llm.connectors.module_to_env import DecodeAction
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.modules.critic import CRITIC_MODULE

if TYPE_CHECKING:
    from rllib_llm.algorithms.ppo.llm_ppo import LLMPPOConfig
    from rllib_llm.types import Device, LLMConfig, Spaces


def env_to_module_pipeline(
    config: LLMConfig, env: gym.Env | None, spaces: Spaces | None, device: Device | None
) -> Any:
    """Return the pipeline from observations to token deltas."""
    # RLlib calls the factory from its own build_* methods, which this pipeline
    # replaces.
    custom = _custom(config._env_to_module_connector, env, spaces, device)
    return EnvToModulePipeline(
        input_observation_space=_space(config),
        input_action_space=_space(config),
        connectors=[
            *custom,
            RenderChat(
                config.chat_renderers(),
                config.system_prompts(),
                config.role_prompts(),
                {
                    m: config.get_config_for_module(m).max_context_tokens
                    for m in config.llm_module_ids
                },
            ),
        ],
    )


def module_to_env_pipeline(
    config: LLMConfig, env: gym.Env | None, spaces: Spaces | None
) -> Any:
    """Return the pipeline from sampled ids to text."""
    custom = _custom(config._module_to_env_connector, env, spaces)
    return ModuleToEnvPipeline(
        input_observation_space=_space(config),
        input_action_space=_space(config),
        connectors=[DecodeAction(config.chat_renderers()), *custom],
    )


def learner_pipeline(
    config: LLMConfig,
    input_observation_space: gym.Space | None,
    input_action_space: gym.Space | None,
    device: Device | None,
) -> Any:
    """Return the pipeline from episodes to masked rows with scores and advantages."""
    custom = _custom(
        config._learner_connector, input_observation_space, input_action_space
    )
    configs = {m: config.get_config_for_module(m) for m in config.trained_module_ids}
    critic = CRITIC_MODULE if config.critic_view else None
    # Policies that are not trained need no rows.
    rows = {m: row_settings(c) for m, c in configs.items()}
    is_central = config.critic_view == "central"
    # Order matters: scores need rows, and GAE needs the values among the scores.
    components: list[Any] = [
        TokenRows(rows, critic=None if is_central else critic),
        *([CentralRows(CRITIC_MODULE, rows)] if is_central else []),
        ScoreRows(
            device=device,
            old_logps=config.scored_old_logps,
            values=[] if critic or not config.use_critic else configs,
            critic=critic,
            references=[m for m, c in configs.items() if c.uses_reference],
            choice_references=[
                m
                for m, c in configs.items()
                if c.components_need("actions") and c.components_need("reference")
            ],
            entropies=[m for m, c in configs.items() if c.components_need("scores")],
            max_tokens=config.micro_batch_tokens,
            packing=config.packing,
            is_sharded=config.sharding is not None,
        ),
        *config.advantage_connectors(configs),
    ]
    if config.trained_non_llm_ids:
        settings = map(config.get_config_for_module, config.trained_non_llm_ids)
        discounts = [(c.gamma, c.lambda_) for c in settings]
        by_module = dict(zip(config.trained_non_llm_ids, discounts, strict=True))
        components.append(NonLLMBatches(by_module, device))
    return LearnerConnectorPipeline(
        connectors=[*custom, *components],
        input_observation_space=input_observation_space,
        input_action_space=input_action_space,
    )


def row_settings(config: LLMConfig) -> RowSettings:
    """Return the settings of a policy's rows."""
    tokenizer = config.chat_renderer().tokenizer
    # Many chat tokenizers have no pad token; padding is masked, so any id serves.
    pad_id = tokenizer.pad_token_id
    pattern = config.loss_mask_pattern
    return RowSettings(
        pad_id=tokenizer.eos_token_id if pad_id is None else pad_id,
        loss_agg_mode=config.loss_agg_mode,
        loss_agg_constant=config.resolved_loss_agg_constant(),
        row_per_turn=config.row_per_turn,
        has_critic=config.use_critic,
        observation_weight=config.observation_weight,
        pattern_mask=None if pattern is None else PatternMask(pattern, tokenizer),
        pictures=config.chat_renderer().pictures,
        action_labels=config.action_labels,
        expert_probs=config.components_need("expert"),
    )


def token_gae(configs: Mapping[str, LLMPPOConfig]) -> TokenGAE:
    """Return the connector that estimates each policy's advantages separately."""
    return TokenGAE({m: gae_settings(c) for m, c in configs.items()})


def gae_settings(config: LLMPPOConfig) -> GAESettings:
    """Return a policy's settings of advantage estimation."""
    in_reward = config.uses_reference and config.ref_kl_in == "reward"
    return GAESettings(
        gamma=config.gamma,
        lambda_=config.lambda_,
        gamma_token=config.gamma_token,
        lambda_token=config.lambda_token,
        level=config.gae_level,
        lambda_critic=config.lambda_critic,
        length_alpha=config.lambda_length_alpha,
        values_are_logits=config.value_loss == "bce",
        whiten=config.whiten_advantages,
        whiten_by=config.whiten_by,
        ref_kl_coeff=config.ref_kl_coeff if in_reward else None,
        ref_kl_estimator=config.ref_kl_estimator,
        ref_kl_clip=config.ref_kl_clip,
    )


def _space(config: LLMConfig) -> gym.Space:
    """Return the text space; RLlib's multi-agent runner needs one per policy."""
    if not config.is_multi_agent:
        return UnicodeText()
    return gym.spaces.Dict({m: UnicodeText() for m in config.module_ids})


def _custom(factory: Callable[..., Any] | None, *args: Any) -> list[Any]:
    """Call a user's connector factory as RLlib does."""
    if factory is None:
        return []
    connectors = factory(*args)
    return list(connectors) if isinstance(connectors, list | tuple) else [connectors]
