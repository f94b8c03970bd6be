"""Every private or fragile touch point with other libraries, one function each.

``tests/test_compat.py`` pins what is relied upon, so that an upgrade that moves
something fails there and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def lora_layers(model: nn.Module) -> list[Any]:
    """Return all peft tuner layers of ``model`` (empty without peft)."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        return []
    return [m for m in model.modules() if isinstance(m, BaseTunerLayer)]


def set_lora_disabled(layer: Any, disabled: bool) -> None:
    """Switch one adapter off or on without touching ``requires_grad``.

    peft's public ``enable_adapters`` also flips ``requires_grad`` of the adapter, which
    would drop it from a graph that is being built.
    """
    layer._disable_adapters = disabled


def is_lora_disabled(layer: Any) -> bool:
    """Return whether :func:`set_lora_disabled` switched this adapter off."""
    return layer._disable_adapters


def conv1d_classes() -> tuple[type, ...]:
    """Return GPT-2's transposed linear layer, which peft treats as linear."""
    from transformers.pytorch_utils import Conv1D

    return (Conv1D,)
