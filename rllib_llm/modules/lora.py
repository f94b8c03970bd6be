"""LoRA adapters: settings, injection, and base models that policies share."""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict, overload

import torch
from annotated_types import Interval
from torch import nn

from rllib_llm import compat
from rllib_llm.errors import MissingExtraError, ModelError
from rllib_llm.modules.architectures import check_all_linear, linear_layer_names
from rllib_llm.pictures.features import adapted_part, vision_parameters
from rllib_llm.schema import PositiveFloat, PositiveInt, require


class LoraSettings(TypedDict, total=False):
    """Settings of LoRA adapters; defaults are in ``LORA_DEFAULTS``."""

    rank: PositiveInt
    alpha: PositiveFloat
    dropout: Annotated[float, Interval(ge=0, lt=1)]
    target_modules: str | list[str]


LORA_DEFAULTS: LoraSettings = {
    "rank": 16,
    "alpha": 32,
    "dropout": 0.0,
    "target_modules": "all-linear",
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

    A vision-language model gets them in its text part. Its tower and projector are
    trained as they are, unless they are frozen already.

    Args:
        model: A causal language model.
        lora: ``rank``, ``alpha``, ``dropout``, ``target_modules`` (list of names or
            ``"all-linear"``); missing ones take ``LORA_DEFAULTS``.

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
    targets, part = settings["target_modules"], adapted_part(model)
    if targets == "all-linear":
        check_all_linear(model)
        targets = linear_layer_names(part)
    vision = {id(p) for p in vision_parameters(model)}
    trained = {id(p) for p in vision_parameters(model) if p.requires_grad}
    config = LoraConfig(
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        lora_dropout=settings["dropout"],
        target_modules=targets,
        exclude_modules=_outside(model, vision),
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
            f"{', '.join(linear_layer_names(part))}."
        ) from error
    for name, parameter in model.named_parameters():
        # inject_adapter_in_model() does not freeze the other parameters.
        parameter.requires_grad_(is_adapter(name) or id(parameter) in trained)
        if is_adapter(name):
            # In float32 for any dtype of the base: small updates vanish in bfloat16.
            parameter.data = parameter.data.float()
    return config


def _outside(model: nn.Module, vision: set[int]) -> str | None:
    """Return a pattern of the layers that hold parameters of the tower or projector."""
    names = [
        name
        for name, module in model.named_modules()
        if any(id(p) in vision for p in module.parameters(recurse=False))
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
