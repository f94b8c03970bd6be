"""Calls in a process of its own, which knows the stand-in accelerator.

Not in conftest.py: the process imports these functions by the name of their module,
and other folders have a conftest.py, too.
"""

from __future__ import annotations

from typing import Any

import standin

_accelerator: Any = None


def register() -> None:
    """Compile the stand-in, if need be, and make torch know it."""
    import torch

    global _accelerator
    torch.set_num_threads(1)
    _accelerator = standin.StandIn(standin.build())


def call(function, *args, **kwargs):
    """Return ``function(accelerator, *args, **kwargs)``."""
    return function(_accelerator, *args, **kwargs)
