"""Copies from host memory to a device for which the host does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def upload(array: np.ndarray | Tensor, device: torch.device | str | None) -> Tensor:
    """Return a tensor on a device, without waiting for the device's earlier work.

    CUDA copies asynchronously from pinned memory alone, so that the values go through
    it. On other devices the driver copies before the call returns. Either way the
    array may change afterwards; on a CPU the tensor shares its memory.

    Args:
        array: Values in host memory.
        device: The device; None: the values stay where they are.
    """
    values = torch.as_tensor(array)
    if device is not None and torch.device(device).type == "cuda":
        values = values.pin_memory()  # in torch's pool of reused buffers
    return values.to(device, non_blocking=True)
