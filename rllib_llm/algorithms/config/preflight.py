"""Check that an environment's first prompts fit into the context."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ray.rllib.core import DEFAULT_AGENT_ID

from rllib_llm.algorithms.config.check_pictures import validate_pictures
from rllib_llm.connectors.tool_prompts import opening
from rllib_llm.env_runner.agents import agents_of, role_prompts, texts_of
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.context_length import model_context_length, text_config
from rllib_llm.modules.max_positions import why_shorter
from rllib_llm.modules.tiny import BUILT_MODELS

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig, PlayableEnv


@dataclasses.dataclass(frozen=True)
class Preflight:
    """Measurements of the check.

    Attributes:
        first_prompt_tokens: Longest first prompt of the sampled tasks.
        context_tokens: Most tokens of a conversation.
    """

    first_prompt_tokens: int
    context_tokens: int


def preflight(config: LLMConfig, num_resets: int = 8) -> Preflight:
    """Reset the environment a few times and check its first prompts' lengths.

    The last reset is one of evaluation, if the run evaluates.

    Raises:
        ConfigError: If a first prompt leaves no room for an answer, or tasks show
            pictures to a model of text.
        ModelError: If max_context_tokens exceeds the model's limit.
        TemplateError: If the tokenizer cannot serve conversations.
    """
    model = config.resolved_model or config.lm_model
    limit = model_context_length(model)
    if limit and (config.max_context_tokens or 0) > limit:
        raise ModelError(
            f"max_context_tokens={config.max_context_tokens} exceeds the {limit} "
            f"positions of {model!r} that can be used.{_why_shorter(model)} Set "
            f"max_context_tokens={limit} or less."
        )
    for module_id in config.llm_module_ids:
        validate_pictures(config.get_config_for_module(module_id))
    context = config.resolved_context_tokens()
    longest = 0
    for name, env in config.make_each_env().items():
        tokens = _longest_first_prompt(config, env, num_resets)
        longest = max(longest, tokens)
        # One token at least must be sampled.
        if tokens + 1 > context:
            raise ConfigError(
                f"The first prompt of {name!r} has {tokens} tokens, but "
                f"max_context_tokens={context} leaves no room to answer. Raise "
                "generation.max_context_tokens or shorten the prompt."
            )
    return Preflight(longest, context)


def _longest_first_prompt(config: LLMConfig, env: PlayableEnv, num_resets: int) -> int:
    """Return the largest number of tokens of a few first prompts; close ``env``."""
    renderer = config.chat_renderer()
    roles = role_prompts(env)
    longest = 0
    # A sample of the tasks; a longer prompt in training ends its episode with
    # `max_context`.
    for seed in range(num_resets):
        is_held_out = seed == num_resets - 1 and _evaluates_in_its_env(config)
        split = "test" if is_held_out else "train"
        result: Any = env.reset(seed=seed, options={"split": split})
        is_single_agent = agents_of(env) is None
        first = (
            {DEFAULT_AGENT_ID: result[0]} if is_single_agent else texts_of(env, result)
        )
        for agent, observation in first.items():
            messages, tools = opening(
                observation,
                result[1] if is_single_agent else result.infos.get(agent, {}),
                system=config.system_prompt or roles.get(agent),
                renderer=renderer,
            )
            longest = max(longest, len(renderer.opened(messages, tools).ids))
    if renderer.pictures is None and getattr(env, "shows_pictures", False):
        raise ConfigError(
            f"Some tasks of {type(env).__name__} show pictures, which "
            f"{config.lm_model!r}, a model of text, cannot read. Use a vision-language "
            "model (docs/pictures.md), or tasks of text."
        )
    env.close()
    return longest


def _evaluates_in_its_env(config: LLMConfig) -> bool:
    changed = {"env", "env_config"} & set(config.evaluation_config or ())
    return bool(config.evaluation_interval) and not changed


def _why_shorter(model: str) -> str:
    return "" if model in BUILT_MODELS else why_shorter(text_config(model))
