"""LoRA adapters: settings, injection, and base models that policies share."""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Collection, Iterator
from typing import Annotated, Any, TypedDict, overload

import torch
from annotated_types import Interval, MinLen
from torch import nn

from rllib_llm import compat
from rllib_llm.errors import MissingExtraError, ModelError
from rllib_llm.modules.architectures import (
    check_all_linear,
    linear_layer_names,
    linear_layers,
)
from rllib_llm.pictures.families import AdaptedPart
from rllib_llm.pictures.features import parameters_outside, vision_parameters
from rllib_llm.schema import PositiveFloat, PositiveInt, require


class LoraSettings(TypedDict, total=False):
    """Settings of LoRA adapters; defaults are in ``LORA_DEFAULTS``."""

    rank: PositiveInt
    alpha: PositiveFloat
    dropout: Annotated[float, Interval(ge=0, lt=1)]
    target_modules: str | list[str]
    parts: Annotated[list[AdaptedPart], MinLen(1)]


LORA_DEFAULTS: LoraSettings = {
    "rank": 16,
    "alpha": 32,
    "dropout": 0.0,
    "target_modules": "all-linear",
    "parts": ["text"],
}


@overload
def lora_settings(lora: None) -> None: ...
@overload
def lora_settings(lora: dict[str, Any]) -> dict[str, Any]: ...
def lora_settings(lora: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return complete LoRA settings, or None without LoRA.

    Raises:
        ConfigError: If a setting is unknown or out of range.
    """
    if lora is None:
        return None
    require("language_model.lora", lora, LoraSettings)
    return {**LORA_DEFAULTS, **lora}


def add_lora(model: nn.Module, lora: dict[str, Any]) -> Any:
    """Inject LoRA adapters in place and freeze all other parameters.

    A vision-language model gets them in ``parts``. Tower and projector, if they are not
    among these, are trained as they are, unless they are frozen already.

    Args:
        model: A causal language model.
        lora: ``rank``, ``alpha``, ``dropout``, ``target_modules`` (list of names or
            ``"all-linear"``), ``parts``; missing ones take ``LORA_DEFAULTS``.

    Returns:
        The ``peft.LoraConfig``.

    Raises:
        MissingExtraError: If peft is not installed.
        ModelError: If no module matches ``target_modules``, or "all-linear" would skip
            the experts of a mixture.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError.for_extra("peft", "lora") from error
    settings = lora_settings(lora)
    outside = {id(p) for p in parameters_outside(model, settings["parts"])}
    names = linear_layer_names(model, outside)
    targets = settings["target_modules"]
    if targets == "all-linear":
        check_all_linear(model)
        # Leaf names of towers may be numbers, which layers of other kinds have, too.
        is_text = settings["parts"] == ["text"]
        targets = names if is_text else linear_layers(model, outside)
    vision = {id(p) for p in vision_parameters(model) if p.requires_grad}
    trained = vision & outside
    config = LoraConfig(
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        target_modules=targets,
        exclude_modules=_holders(model, outside),
        # GPT-2's Conv1d stores the transposed weight, so PEFT needs this flag.
        fan_in_fan_out=any(
            isinstance(m, compat.conv1d_classes()) for m in model.modules()
        ),
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(config, model)
    except ValueError as error:
        raise ModelError(
            f"LoRA target_modules={settings['target_modules']!r} match no module of "
            f"{type(model).__name__}. Choose among its linear layers: "
            f"{', '.join(names)}."
        ) from error
    for name, parameter in model.named_parameters():
        # inject_adapter_in_model() does not freeze the other parameters.
        parameter.requires_grad_(is_adapter(name) or id(parameter) in trained)
        if is_adapter(name):
            # In float32 for any dtype of the base: small updates vanish in bfloat16.
            parameter.data = parameter.data.float()
    return config


def _holders(model: nn.Module, parameters: Collection[int]) -> str | None:
    """Return a pattern of the layers that hold any of these parameters (ids)."""
    names = [
        name
        for name, module in model.named_modules()
        if any(id(p) in parameters for p in module.parameters(recurse=False))
    ]
    return "|".join(map(re.escape, names)) or None


def is_adapter(parameter_name: str) -> bool:
    """Return whether a parameter belongs to a LoRA adapter."""
    return "lora_" in parameter_name


@contextlib.contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Disable the LoRA adapters inside the block; no effect without LoRA."""
    layers = compat.lora_layers(model)
    before = [compat.is_lora_disabled(layer) for layer in layers]
    for layer in layers:
        compat.set_lora_disabled(layer, True)
    try:
        yield
    finally:
        for layer, was_disabled in zip(layers, before, strict=True):
            compat.set_lora_disabled(layer, was_disabled)


class SharedBase:
    """Frozen tensors of a base model, kept as long as a policy holds a reference."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}


_BASES: weakref.WeakValueDictionary[Any, SharedBase] = weakref.WeakValueDictionary()


def share_base(model: nn.Module, source: str, dtype: str) -> SharedBase:
    """Make ``model`` use the base tensors that this process already holds.

    The first model provides the tensors. They must not be written to: under LoRA only
    adapters are trained, synced and restored.

    Args:
        model: A language model with LoRA adapters.
        source: Folder or hub id that its base was loaded from.
        dtype: Name of the base's dtype.

    Returns:
        The shared tensors; the caller must keep the reference.
    """
    # The device is part of the key: policies on other devices need tensors of their
    # own.
    device = str(next(model.parameters()).device)
    # Weak values: the tensors are freed with the last policy that holds the returned
    # object.
    base = _BASES.setdefault((source, dtype, device), SharedBase())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_adapter(name) or tensor.requires_grad:  # e.g. a trained vision tower
            continue
        # PEFT wraps adapted layers, so the same weight has two names.
        plain = name.replace(".base_layer.", ".")
        shared = base.tensors.setdefault(plain, tensor.data)
        if shared.shape == tensor.shape and shared.dtype == tensor.dtype:
            tensor.data = shared
    return base
