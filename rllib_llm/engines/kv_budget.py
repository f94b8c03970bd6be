"""Memory budget of the key-value cache."""

from __future__ import annotations

import os

import torch

RAM_SHARE = 0.3
"""Share of the machine's memory, for a cache on the CPU."""

DEVICE_SHARE = 0.6
"""Share of the memory that is free on a CUDA device when the engine is built."""


def kv_budget_bytes(gib: float | None, device: torch.device) -> int:
    """Return the maximum size of the cache in bytes.

    Args:
        gib: A budget in GiB; None derives one from the device.
        device: Device of the cache.
    """
    if gib is not None:
        return int(gib * 2**30)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(DEVICE_SHARE * free)
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(RAM_SHARE * ram)
