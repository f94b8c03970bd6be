"""What a recipe will do, in numbers, before it does it."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

from rllib_llm.algorithms.preflight import preflight
from rllib_llm.modules import loading
from rllib_llm.modules.preparation import prepare_language_model
from rllib_llm.modules.value_head import ValueHead

_FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Memory:
    """Estimated bytes of one process that both samples and learns.

    Activations are not included; ``micro_batch_tokens`` bounds them.

    Attributes:
        weights: The policy, the critic and, without LoRA, a frozen reference.
        gradients: One value per trained parameter.
        optimizer: AdamW's two float32 moments, and float32 masters of low-precision
            parameters.
        kv_cache: Keys and values if every slot holds a full conversation, at most
            ``kv_cache_gib``.
    """

    weights: int
    gradients: int
    optimizer: int
    kv_cache: int

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.weights + self.gradients + self.optimizer + self.kv_cache


@dataclasses.dataclass(frozen=True)
class Plan:
    """One iteration of a recipe.

    Attributes:
        episodes: Episodes sampled per iteration.
        groups: Tasks per iteration; each is played ``group_size`` times.
        group_size: Rollouts per task.
        max_turns: Most turns of an episode.
        first_prompt_tokens: Longest first prompt among a few.
        context_tokens: Most tokens of a conversation.
        episode_tokens: Most sampled tokens of an episode.
        iteration_tokens: Most sampled tokens of an iteration.
        rows_per_update: Training rows per optimiser step (one per episode, or one per
            turn under ``row_per_turn``).
        updates: Optimiser steps per iteration.
        micro_batch_tokens: Most tokens per forward pass of the learner; None: all.
        parameters: Parameters of policy and critic.
        trained: Those that are trained.
        memory: Estimated bytes.
    """

    episodes: int
    groups: int
    group_size: int
    max_turns: int
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


def make_plan(
    config: Any, on_progress: Callable[[str, float], None] | None = None
) -> Plan:
    """Return the plan of a validated config, without warm start or training.

    The tokenizer and random weights of the tiny model are built (seconds, cached),
    since prompts can only be measured with them. Weights of other models are not
    loaded: their parameters are counted from their config.

    Raises:
        ConfigError, ModelError, TemplateError: What :func:`preflight` finds.
    """
    config = config.copy(copy_frozen=False).warm_start(demonstrations=0)
    config.resolved_model = prepare_language_model(config, on_progress)
    checked = preflight(config)
    turns = _max_turns(config)
    budget = checked.context_tokens
    if _samples_tokens(config):
        budget = min(turns * config.max_new_tokens, budget)
    if config.max_tokens_per_episode:
        budget = min(budget, config.max_tokens_per_episode)
    minibatch = config.minibatch_size or config.episodes_per_iteration
    steps = math.ceil(config.episodes_per_iteration / minibatch)
    parameters, trained, memory = _count(config, checked.context_tokens)
    return Plan(
        episodes=config.episodes_per_iteration,
        groups=config.episodes_per_iteration // config.group_size,
        group_size=config.group_size,
        max_turns=turns,
        first_prompt_tokens=checked.first_prompt_tokens,
        context_tokens=checked.context_tokens,
        episode_tokens=budget,
        iteration_tokens=budget * config.episodes_per_iteration,
        rows_per_update=minibatch * (turns if config.row_per_turn else 1),
        updates=steps * config.num_epochs,
        micro_batch_tokens=config.micro_batch_tokens,
        parameters=parameters,
        trained=trained,
        memory=memory,
    )


def _samples_tokens(config: Any) -> bool:
    return config.action_head == "generate"


def _max_turns(config: Any) -> int:
    env = config.make_text_env()
    turns = env.unwrapped.max_turns
    env.close()
    return min(turns, config.max_turns or turns)


def _count(config: Any, context_tokens: int) -> tuple[int, int, Memory]:
    """Return all parameters, the trained ones, and the memory they need."""
    lm, head = _skeleton(config)
    policy = list(lm.parameters())
    critic = list(head.parameters()) if head is not None else []
    trained = [p for p in (*policy, *critic) if p.requires_grad]
    copies = 2 if config.uses_reference and not config.lm_lora else 1
    memory = Memory(
        weights=_bytes(policy) * copies + _bytes(critic),
        gradients=_bytes(trained),
        optimizer=sum(p.numel() * _optimizer_bytes(p) for p in trained),
        kv_cache=_kv_bytes(config, lm, context_tokens) * _samples_tokens(config),
    )
    count = sum(p.numel() for p in (*policy, *critic))
    return count, sum(p.numel() for p in trained), memory


def _skeleton(config: Any) -> tuple[Any, Any]:
    """Build policy and critic without memory for their weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_config = AutoConfig.from_pretrained(config.resolved_model)
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(
            model_config, dtype=loading.DTYPES[config.lm_dtype]
        )
        if config.lm_lora:
            loading.add_lora(lm, config.lm_lora)
        if not config.use_critic:
            return lm, None
        width = lm.config.get_text_config().hidden_size
        trunk = copy.deepcopy(lm.base_model) if config.lm_value_model == "own" else None
        return lm, ValueHead(width, config.lm_value_head, trunk=trunk)


def _bytes(parameters: list[Any]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _optimizer_bytes(parameter: Any) -> int:
    masters = _FLOAT32_BYTES if parameter.element_size() < _FLOAT32_BYTES else 0
    return 2 * _FLOAT32_BYTES + masters


def _slots(config: Any) -> int:
    return min(config.num_envs_per_env_runner, config.episodes_per_iteration)


def _kv_bytes(config: Any, lm: Any, context_tokens: int) -> int:
    everything = _kv_bytes_per_token(lm) * context_tokens * _slots(config)
    if config.kv_cache_gib is None:
        return everything
    return min(everything, int(config.kv_cache_gib * 2**30))


def _kv_bytes_per_token(lm: Any) -> int:
    config = lm.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    element = next(lm.parameters()).element_size()
    return 2 * config.num_hidden_layers * heads * width * element
