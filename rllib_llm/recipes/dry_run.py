"""Dry run of a recipe: the sizes of one iteration, computed before training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.algorithms.driver.build_vllm_engines import why_vllm
from rllib_llm.algorithms.driver.memory_plan import Memory, plan_memory
from rllib_llm.algorithms.driver.prepared_models import with_models

if TYPE_CHECKING:
    from rllib_llm.types import LLMConfig


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of one training iteration.

    Attributes:
        episodes: Episodes sampled per iteration.
        groups: Tasks per iteration; each has ``group_size`` rollouts.
        group_size: Rollouts per task.
        max_turns: Maximum turns of an episode; None: neither the environment nor
            ``rollouts(max_turns=...)`` limits them.
        first_prompt_tokens: Longest first prompt of a few sampled tasks.
        context_tokens: Maximum tokens of a conversation.
        episode_tokens: Maximum sampled tokens of an episode.
        iteration_tokens: Maximum sampled tokens of an iteration.
        rows_per_update: Training rows per optimiser step (one per episode, or one per
            turn under ``row_per_turn``).
        updates: Optimiser steps per iteration.
        micro_batch_tokens: Maximum tokens per forward pass of the Learner; None: the
            whole minibatch.
        parameters: Parameters of all policies and critics; a base model that adapters
            share counts once.
        trained: Number of trained parameters.
        memory: Estimated memory of one process.
        why_vllm: Reason to choose vLLM in place of the torch engine, if there is one.
    """

    episodes: int
    groups: int
    group_size: int
    max_turns: int | None
    first_prompt_tokens: int
    context_tokens: int
    episode_tokens: int
    iteration_tokens: int
    rows_per_update: int
    updates: int
    micro_batch_tokens: int | None
    parameters: int
    trained: int
    memory: Memory
    why_vllm: str | None


def make_plan(
    config: LLMConfig, on_progress: Callable[[str, float], None] | None = None
) -> Plan:
    """Return the plan of a config without SFT or training.

    Prompts can only be measured with a tokenizer, so the tokenizer and random weights
    of the tiny model are built (seconds, cached). Weights of other models are not
    loaded: their parameters are counted from their config.

    Raises:
        ConfigError, ModelError, TemplateError: As ``validate`` and :func:`preflight`.
    """
    config = _without_sft(config)
    config.validate()
    config = with_models(config, on_progress)
    policies = map(config.get_config_for_module, config.llm_module_ids)
    checked = [preflight(policy) for policy in policies]
    context_tokens = max(c.context_tokens for c in checked)
    turns = _max_turns(config)
    # A conversation also holds prompts, so the context bounds what is sampled.
    budget = context_tokens
    if _samples_tokens(config) and turns is not None:
        budget = min(turns * config.max_new_tokens, budget)
    if config.max_tokens_per_episode:
        budget = min(budget, config.max_tokens_per_episode)
    minibatch = config.minibatch_size or config.episodes_per_iteration
    steps = math.ceil(config.episodes_per_iteration / minibatch)
    parameters, trained, memory = plan_memory(config)
    return Plan(
        episodes=config.episodes_per_iteration,
        groups=config.episodes_per_iteration // config.group_size,
        group_size=config.group_size,
        max_turns=turns,
        first_prompt_tokens=max(c.first_prompt_tokens for c in checked),
        context_tokens=context_tokens,
        episode_tokens=budget,
        iteration_tokens=budget * config.episodes_per_iteration,
        # Every turn samples at least one token, so the budget bounds the turns too.
        rows_per_update=minibatch * ((turns or budget) if config.row_per_turn else 1),
        updates=steps * config.num_epochs,
        micro_batch_tokens=config.micro_batch_tokens,
        parameters=parameters,
        trained=trained,
        memory=memory,
        why_vllm=why_vllm(config, parameters),
    )


def _without_sft(config: LLMConfig) -> LLMConfig:
    """Return a copy none of whose models, references included, is fine-tuned."""
    config = config.copy(copy_frozen=False).sft(demonstrations=0)
    config.ref_model = _untrained(config.ref_model)
    config.policy_settings = {
        name: {key: _without_ref_sft(values) for key, values in given.items()}
        for name, given in config.policy_settings.items()
    }
    # Those of policy_settings are made from it anew.
    overrides = config.algorithm_config_overrides_per_module.items()
    config.algorithm_config_overrides_per_module = {
        name: _without_ref_sft(changes) for name, changes in overrides
    }
    return config


def _without_ref_sft(settings: Any) -> Any:
    """Return settings whose ``ref_model``, if there is one, is not fine-tuned."""
    if not isinstance(settings, Mapping) or "ref_model" not in settings:
        return settings
    return {**settings, "ref_model": _untrained(settings["ref_model"])}


def _untrained(ref_model: Any) -> Any:
    """Return a setting ``ref_model`` without its fine-tuning."""
    if not isinstance(ref_model, Mapping):
        return ref_model
    return {name: value for name, value in ref_model.items() if name != "sft"}


def _samples_tokens(config: LLMConfig) -> bool:
    return config.action_head == "generate"


def _max_turns(config: LLMConfig) -> int | None:
    env = config.make_text_env()
    env_limit = getattr(env.unwrapped, "max_turns", None)
    env.close()
    limits = [turns for turns in (env_limit, config.max_turns) if turns is not None]
    return min(limits, default=None)
