"""Assemble the connector pipelines of a configuration.

Connectors that a user adds through RLlib's own settings come first (env-to-module,
learner) or last (module-to-env), as in RLlib.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.env_to_module import EnvToModulePipeline
from ray.rllib.connectors.learner import LearnerConnectorPipeline
from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline

from rllib_llm.connectors.env_to_module import RenderChat
from rllib_llm.connectors.learner.score_rows import ScoreRows
from rllib_llm.connectors.learner.token_gae import TokenGAE
from rllib_llm.connectors.learner.token_rows import TokenRows
from rllib_llm.connectors.module_to_env import DecodeAction
from rllib_llm.envs.spaces import UnicodeText


def env_to_module_pipeline(config: Any, env: Any, spaces: Any, device: Any) -> Any:
    """Observations to token deltas."""
    custom = _custom(config._env_to_module_connector, env, spaces, device)
    system_prompt = config.system_prompt
    if system_prompt is None:
        text_env = config.make_text_env()
        system_prompt = getattr(text_env.unwrapped, "system_prompt", None)
        text_env.close()
    return EnvToModulePipeline(
        input_observation_space=UnicodeText(),
        input_action_space=UnicodeText(),
        connectors=[*custom, RenderChat(config.chat_renderer(), system_prompt)],
    )


def module_to_env_pipeline(config: Any, env: Any, spaces: Any) -> Any:
    """Sampled ids to text."""
    custom = _custom(config._module_to_env_connector, env, spaces)
    return ModuleToEnvPipeline(
        input_observation_space=UnicodeText(),
        input_action_space=UnicodeText(),
        connectors=[DecodeAction(config.chat_renderer()), *custom],
    )


def learner_pipeline(
    config: Any, input_observation_space: Any, input_action_space: Any, device: Any
) -> Any:
    """Episodes to masked token rows with old scores and advantages."""
    custom = _custom(
        config._learner_connector, input_observation_space, input_action_space
    )
    tokenizer = config.chat_renderer().tokenizer
    pad_id = tokenizer.pad_token_id
    pieces: list[Any] = [
        TokenRows(
            pad_id=tokenizer.eos_token_id if pad_id is None else pad_id,
            loss_agg_mode=config.loss_agg_mode,
            loss_agg_constant=config.resolved_loss_agg_constant(),
            row_per_turn=config.row_per_turn,
            has_critic=config.use_critic,
        ),
        ScoreRows(
            device=device,
            old_logps=config.old_logps,
            values=config.use_critic,
            reference=config.uses_reference,
            max_tokens=config.micro_batch_tokens,
        ),
    ]
    if config.use_critic:
        in_reward = config.uses_reference and config.ref_kl_in == "reward"
        pieces.append(
            TokenGAE(
                gamma=config.gamma,
                lambda_=config.lambda_,
                gamma_token=config.gamma_token,
                lambda_token=config.lambda_token,
                whiten=config.whiten_advantages,
                ref_kl_coeff=config.ref_kl_coeff if in_reward else None,
                ref_kl_estimator=config.ref_kl_estimator,
            )
        )
    return LearnerConnectorPipeline(
        connectors=[*custom, *pieces],
        input_observation_space=input_observation_space,
        input_action_space=input_action_space,
    )


def _custom(factory: Any, *args: Any) -> list[Any]:
    """Call a user's connector factory as RLlib does."""
    if factory is None:
        return []
    made = factory(*args)
    return list(made) if isinstance(made, list | tuple) else [made]
