"""Checks of a model's architecture: causal language models and LoRA targets."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from rllib_llm import compat
from rllib_llm.errors import ModelError
from rllib_llm.pictures.features import has_vision, parameters_outside, text_trunk
from rllib_llm.pictures.spec import reads_pictures, refused_family

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def read_config(model: str) -> Any:
    """Return the config of a checkpoint folder or hub id.

    Raises:
        ModelError: If it cannot be read, or the model is not a causal language model.
    """
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        AutoConfig,
    )

    try:
        config = AutoConfig.from_pretrained(os.path.expanduser(model))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"The model config of {model!r} could not be read: {error}"
        ) from error
    if reads_pictures(config):
        return config
    # The auto class would raise an error that lists a hundred classes.
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            raise ModelError(
                f"language_model.model={model!r}: {refused_family(config.model_type)}"
            )
        raise ModelError(
            f"language_model.model={model!r} is of type {config.model_type!r}, which "
            "transformers does not load as a causal language model. Models for audio "
            "and encoder-decoders are not supported as policies. Use a text "
            "model, e.g. 'Qwen/Qwen2.5-0.5B-Instruct'."
        )
    return config


def auto_class(config: Any) -> Any:
    """Return the auto class of transformers that loads a policy's model."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    if reads_pictures(config):
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def check_folder(model: str, lora: dict[str, Any] | None) -> None:
    """Check the model of a local folder without loading its weights.

    Args:
        model: The folder.
        lora: Complete LoRA settings, or None.

    Raises:
        ModelError: If it cannot be a policy, or LoRA would skip its experts.
    """
    is_all_linear = lora is not None and lora["target_modules"] == "all-linear"
    path = os.path.join(os.path.expanduser(model), "config.json")
    # The modification time is part of the cache's key.
    _check_folder(model, is_all_linear, os.path.getmtime(path))


@functools.lru_cache(maxsize=16)
def _check_folder(model: str, is_all_linear: bool, _changed: float) -> None:
    config = read_config(model)
    if is_all_linear:
        # On the meta device: the architecture without memory for the weights.
        with torch.device("meta"):
            check_all_linear(auto_class(config).from_config(config))


def check_all_linear(model: nn.Module) -> None:
    """Check that the LoRA target ``all-linear`` covers the experts of a model.

    transformers holds the experts of a mixture in one tensor per layer. These are not
    linear layers, so they would get no adapters.

    Raises:
        ModelError: If the model has such tensors.
    """
    fused = fused_experts(text_trunk(model) if has_vision(model) else model)
    if not fused:
        return
    share = sum(fused.values()) / sum(math.prod(p.shape) for p in model.parameters())
    leaves = sorted({".".join(name.split(".")[-2:]) for name in fused})
    raise ModelError(
        f"LoRA target_modules='all-linear' would leave the experts of "
        f"{type(model).__name__} without adapters: {share:.0%} of its weights are in "
        f"tensors that are not linear layers ({', '.join(leaves)}). To adapt only the "
        "linear layers, list them: "
        f"target_modules: [{', '.join(_text_layer_names(model))}]."
    )


def fused_experts(model: nn.Module) -> dict[str, int]:
    """Return the sizes of tensors that hold several matrices, by name."""
    return {
        name: parameter.numel()
        for module_name, module in model.named_modules()
        if not isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        for name, parameter in module.named_parameters(module_name, recurse=False)
        if parameter.ndim > 2
    }


def uses_flash_attention(config: PretrainedConfig) -> bool:
    """Return whether a model attends with flash attention, which runs on GPUs only."""
    # As transformers' own test: "flash_attention_2", "kernels-community/flash-attn3".
    return "flash" in (config._attn_implementation or "")


def _text_layer_names(model: nn.Module) -> list[str]:
    vision = {id(p) for p in parameters_outside(model, ["text"])}
    return linear_layer_names(model, vision)


def linear_layer_names(
    model: nn.Module, outside: Collection[int] = frozenset()
) -> list[str]:
    """Return the distinct leaf names of :func:`linear_layers`."""
    return sorted({n.rsplit(".", 1)[-1] for n in linear_layers(model, outside)})


def linear_layers(
    model: nn.Module, outside: Collection[int] = frozenset()
) -> list[str]:
    """Return the names of linear layers without the output head.

    Args:
        model: A causal or vision-language model.
        outside: Ids of parameters whose layers do not count.
    """
    # Adapters on the output layer would need [vocabulary, rank] parameters and are not
    # usual; PEFT's "all-linear" omits it, too.
    head = model.get_output_embeddings()
    kinds = (nn.Linear, *compat.conv1d_classes())
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, kinds)
        # PyTorch reads its weight without calling it: an adapter has no effect.
        and not isinstance(module, NonDynamicallyQuantizableLinear)
        and module is not head
        and id(module.weight) not in outside
    ]
