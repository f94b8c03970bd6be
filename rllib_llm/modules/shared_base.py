"""One copy of a frozen base model per process, however many adapters stand on it."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from rllib_llm.modules.loading import is_adapter


class SharedBase:
    """The frozen tensors of a base model, alive as long as a policy uses them."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}


_BASES: weakref.WeakValueDictionary[Any, SharedBase] = weakref.WeakValueDictionary()


def share_base(model: nn.Module, source: str, dtype: str) -> SharedBase:
    """Let ``model`` use the base tensors that this process already holds.

    The first model to come provides them. Nothing may ever write to them: under LoRA
    only adapters are trained, synced and restored.

    Args:
        model: A language model with LoRA adapters.
        source: Folder or hub id that its base was loaded from.
        dtype: Name of the base's dtype.

    Returns:
        What the model must hold on to.
    """
    device = str(next(model.parameters()).device)
    base = _BASES.setdefault((source, dtype, device), SharedBase())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_adapter(name):
            continue
        plain = name.replace(".base_layer.", ".")
        known = base.tensors.setdefault(plain, tensor.data)
        if known.shape == tensor.shape and known.dtype == tensor.dtype:
            tensor.data = known
    return base
