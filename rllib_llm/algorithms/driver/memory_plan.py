"""Parameter counts and memory estimates of a recipe's models, built without weights."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from rllib_llm.algorithms.learner.adamw import step_bytes
from rllib_llm.modules import loading
from rllib_llm.modules.action_model import ActionModel, ActionRLModule
from rllib_llm.modules.architectures import auto_class, read_config
from rllib_llm.modules.lora import add_lora
from rllib_llm.modules.sharding import decoder_layers, stays_whole
from rllib_llm.modules.value_head import ValueHead
from rllib_llm.pictures.features import freeze

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from torch import nn
    from transformers import PreTrainedModel

    from rllib_llm.types import LLMConfig

_FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Memory:
    """Estimated bytes of one process that both samples and trains.

    Activations are not included; ``micro_batch_tokens`` bounds them.

    Attributes:
        weights: Policies, critics and, without LoRA, frozen references.
        gradients: One value per trained parameter.
        optimizer: AdamW's two float32 moments, and float32 masters of low-precision
            parameters.
        kv_cache: Keys and values if every slot holds a full conversation, at most
            ``kv_cache_gib``.
        step: Temporaries of an optimiser step, or layers that sharded Learners gather
            in a pass, if these are larger.
        optimizer_host: The optimiser's bytes in host memory (``optimizer_offload``);
            not in the sums, which are those of the Learner's device.
    """

    weights: int
    gradients: int
    optimizer: int
    kv_cache: int
    step: int = 0
    optimizer_host: int = 0

    @property
    def of_training(self) -> int:
        """The peak of an update, without activations."""
        return self.weights + self.gradients + self.optimizer + self.step

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.of_training + self.kv_cache


def plan_memory(config: LLMConfig) -> tuple[int, int, Memory]:
    """Return the number of parameters, of trained ones, and their memory.

    Args:
        config: A validated config whose models are resolved.
    """
    held: list[Any] = []
    trained: list[Any] = []
    references = cache = gathered = 0
    whole: set[int] = set()  # parameters that sharded Learners hold as well
    bases: set[tuple[str, str]] = set()
    for module_id in config.llm_module_ids:
        policy = config.get_config_for_module(module_id)
        settings = policy.language_model_config()
        lm, head = _skeleton(settings)
        weights = [*lm.parameters(), *_parameters(head)]
        learns = module_id in config.trained_module_ids
        trained += [p for p in weights if p.requires_grad and learns]
        base = (settings["model"], settings["dtype"])
        gathered = max(gathered, _gathered_bytes(config, lm))
        # Adapters share one copy per process, except of shards.
        if settings["lora"] and base in bases and not config.sharding:
            weights = [p for p in weights if p.requires_grad]
        elif settings["lora"]:
            bases.add(base)
        if settings["reference"] and (settings["ref_model"] or not settings["lora"]):
            references += _bytes(_reference(settings, lm).parameters())
        if settings["mask_policy"]:
            references += _bytes(lm.parameters())
        held += weights
        whole |= _whole(lm, head)
        if policy.action_head == "generate":
            tokens = policy.resolved_context_tokens() * _slots(config)
            models = 1 + settings["mask_policy"]
            cache += models * _kv_bytes_per_token(lm) * tokens
    for extra in (config.critic_module_spec(), config.scorer_module_spec()):
        if extra is not None:
            extra_held, extra_trained, extra_whole = _of_learners(extra)
            held, trained = held + extra_held, trained + extra_trained
            whole |= extra_whole
    if config.kv_cache_gib is not None:
        cache = min(cache, int(config.kv_cache_gib * 2**30))
    parts = config.num_learners if config.sharding else 1

    def of_learner(parameters: list[Any], size: Callable[[Any], int]) -> int:
        sizes = [(size(p) * p.numel(), id(p) in whole) for p in parameters]
        return sum(n if stays else -(-n // parts) for n, stays in sizes)

    optimizer = of_learner(trained, _optimizer_bytes)
    offload = config.optimizer_offload
    memory = Memory(
        weights=of_learner(held, _element_size) + -(-references // parts),
        gradients=of_learner(trained, _element_size),
        optimizer=0 if offload else optimizer,
        kv_cache=cache,
        step=max(step_bytes(trained, offload=offload), gathered),
        optimizer_host=optimizer if offload else 0,
    )
    return sum(p.numel() for p in held), sum(p.numel() for p in trained), memory


def _reference(settings: dict[str, Any], lm: nn.Module) -> nn.Module:
    """Return a policy's frozen reference on the meta device."""
    if settings["ref_model"] is None:
        return lm
    return _skeleton(
        {**settings, "model": settings["ref_model"], "lora": None, "value_head": None}
    )[0]


def _skeleton(settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return an LLMRLModule's model and value head on the meta device."""
    model_config = read_config(settings["model"])
    with torch.device("meta"):
        lm = auto_class(model_config).from_config(
            model_config, dtype=loading.DTYPES[settings["dtype"]]
        )
        freeze(lm, settings.get("freeze") or ())
        if settings["lora"]:
            add_lora(lm, settings["lora"])
        if settings["value_head"] is None:
            return lm, None
        width = lm.config.get_text_config().hidden_size
        is_separate = settings["value_model"] == "own"
        trunk = copy.deepcopy(lm.base_model) if is_separate else None
        return lm, ValueHead(width, **settings["value_head"], trunk=trunk)


def _of_learners(extra: RLModuleSpec) -> tuple[list[Any], list[Any], set[int]]:
    """Return parameters of a critic or scorer, trained ones, and ids of whole ones."""
    settings = extra.model_config
    assert isinstance(settings, dict)
    if extra.module_class is ActionRLModule:
        with torch.device("meta"):
            model = ActionModel(settings["vocabulary"], settings["num_actions"])
        return _parameters(model), _parameters(model), set()
    lm, head = _skeleton(settings)
    of_head = settings["value_head"]
    lm.requires_grad_(not (of_head and of_head["detach"]))
    weights = [*lm.parameters(), *_parameters(head)]
    target = [*lm.base_model.parameters()] if settings.get("num_q") else []
    trained = [p for p in weights if p.requires_grad]
    return weights + target, trained, _whole(lm, head)


def _whole(lm: nn.Module, head: nn.Module | None) -> set[int]:
    """Return the ids of parameters that :func:`shard` does not divide."""
    named = [*lm.named_parameters()]
    if head is not None:
        named += [(f"value_head.{n}", p) for n, p in head.named_parameters()]
    return {id(p) for n, p in named if stays_whole(n)}


def _gathered_bytes(config: LLMConfig, lm: nn.Module) -> int:
    """Return the bytes of embeddings, output layer and two layers; 0 if not sharded."""
    if not config.sharding:
        return 0
    name = config.complete_sharding_kwargs()["param_dtype"]
    layers = [_count(layer.parameters()) for layer in decoder_layers(lm)]
    # The next layer is gathered while one computes.
    elements = _count(lm.parameters()) - sum(layers) + 2 * max(layers)
    dtype = loading.DTYPES[name] if name else next(lm.parameters()).dtype
    return elements * dtype.itemsize


def _count(parameters: Iterable[torch.Tensor]) -> int:
    return sum(p.numel() for p in parameters)


def _element_size(parameter: torch.Tensor) -> int:
    return parameter.element_size()


def _parameters(head: nn.Module | None) -> list[Any]:
    return [] if head is None else list(head.parameters())


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _optimizer_bytes(parameter: torch.Tensor) -> int:
    # Low-precision parameters have a float32 master copy; AdamW has two moments.
    masters = _FLOAT32_BYTES if parameter.element_size() < _FLOAT32_BYTES else 0
    return 2 * _FLOAT32_BYTES + masters


def _slots(config: LLMConfig) -> int:
    return min(config.num_envs_per_env_runner, config.episodes_per_iteration)


def _kv_bytes_per_token(lm: PreTrainedModel) -> int:
    config = lm.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    element = next(lm.parameters()).element_size()
    # Keys and values of every layer.
    return 2 * config.num_hidden_layers * heads * width * element
