"""Turn parameters into what RLlib ships between processes and writes to disk, and back.

RLlib converts states to numpy, which has no bfloat16: building an algorithm around a
bfloat16 module fails there. Such tensors travel as their bits (uint16) instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from rllib_llm.errors import CheckpointError

_BF16 = "@bf16"


def pack(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Return numpy arrays; bfloat16 as uint16 under the name plus a marker."""
    packed = {}
    for name, tensor in tensors.items():
        # A copy: a view would follow later in-place optimiser steps.
        tensor = tensor.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            packed[name + _BF16] = tensor.view(torch.uint16).numpy().copy()
        else:
            packed[name] = tensor.numpy().copy()
    return packed


def unpack(state: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Invert :func:`pack`."""
    tensors = {}
    for name, value in state.items():
        tensor = torch.as_tensor(np.asarray(value))
        if name.endswith(_BF16):
            name, tensor = name.removesuffix(_BF16), tensor.view(torch.bfloat16)
        tensors[name] = tensor
    return tensors


def copy_into(
    targets: Mapping[str, torch.Tensor], source: Mapping[str, torch.Tensor], what: str
) -> None:
    """Copy ``source`` into ``targets`` in place, refusing what does not fit.

    Names of ``source`` that ``targets`` lacks are errors, missing ones are not: a
    state may be partial (adapters only).

    Raises:
        CheckpointError: If a name is unknown or a shape differs.
    """
    for name, value in source.items():
        target = targets.get(name)
        if target is None or target.shape != value.shape:
            have = "nothing" if target is None else f"shape {tuple(target.shape)}"
            raise CheckpointError(
                f"The state of another model was given to {what}: {name!r} has shape "
                f"{tuple(value.shape)} there and {have} here. Use the checkpoint with "
                "the language_model settings it was written with."
            )
        with torch.no_grad():
            target.copy_(value)
