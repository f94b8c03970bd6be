"""Frozen base models that the LoRA policies of a process share."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from rllib_llm.modules.loading import is_adapter


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
        if is_adapter(name):
            continue
        # PEFT wraps adapted layers, so the same weight has two names.
        plain = name.replace(".base_layer.", ".")
        shared = base.tensors.setdefault(plain, tensor.data)
        if shared.shape == tensor.shape and shared.dtype == tensor.dtype:
            tensor.data = shared
    return base
