"""Calls in a process of its own, which knows the accelerator.

Not in conftest.py: the process imports these functions by the name of their module,
and other folders have a conftest.py, too.
"""

from __future__ import annotations

from typing import Any

import standin
import torch

_accelerator: Any = None


def register(device: str) -> None:
    """Make torch know the accelerator; compile the stand-in, if need be."""
    global _accelerator
    torch.set_num_threads(1)
    _accelerator = accelerator(device)


def accelerator(device: str) -> Any:
    """Return ``"cuda"`` or ``"standin"``, with one interface."""
    if device == "standin":
        return standin.StandIn(standin.build())
    from cuda import Cuda

    return Cuda()


def call(function, *args, **kwargs):
    """Return ``function(accelerator, *args, **kwargs)``."""
    return function(_accelerator, *args, **kwargs)
