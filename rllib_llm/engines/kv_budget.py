"""Memory budget of the key-value cache."""

from __future__ import annotations

import os

import torch

from rllib_llm.errors import ConfigError

RAM_SHARE = 0.3
"""Share of the machine's memory, for a cache on the CPU."""

DEVICE_SHARE = 0.6
"""Share of an accelerator's memory that is left for cache and activations."""


def kv_budget_bytes(
    gib: float | None, device: torch.device, planned: int | None = None
) -> int:
    """Return the maximum size of the cache in bytes.

    Args:
        gib: A budget in GiB; None derives one from the device.
        device: Device of the cache.
        planned: Bytes that this process will need on the device, the tensors that it
            has by now included; None: those that it has.

    Raises:
        ConfigError: If the device has less memory than is planned.
    """
    if gib is not None:
        return int(gib * 2**30)
    if device.type not in ("cpu", "mps"):  # which share the machine's memory
        memory = torch.get_device_module(device)
        free, _ = memory.mem_get_info(device)
        # Blocks that torch keeps are this process's as well.
        available = free + memory.memory_reserved(device)
        if planned is None:
            planned = memory.memory_allocated(device)
        if available <= planned:
            raise ConfigError(
                f"Weights, gradients and optimiser need {planned / 2**30:.2f} GiB, but "
                f"{available / 2**30:.2f} GiB of {device} are available. Train "
                "adapters (language_model.lora), take a smaller model, or end other "
                "processes on the device."
            )
        return int(DEVICE_SHARE * (available - planned))
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(RAM_SHARE * ram)


def slots_within(budget: int, row_bytes: int, max_context_tokens: int) -> int:
    """Return the number of rows of the cache that fit a budget.

    With fewer slots requests wait for a row, and results do not change.

    Args:
        budget: Maximum size of the cache in bytes.
        row_bytes: Bytes of one row.
        max_context_tokens: Maximum tokens of a row, for the message.

    Raises:
        ConfigError: If not even one row fits.
    """
    if budget < row_bytes:
        raise ConfigError(
            f"kv_budget_bytes ({budget}) is less than the {row_bytes} bytes of one "
            f"session of {max_context_tokens} tokens. Raise the budget (kv_cache_gib "
            "in a config) or lower max_context_tokens."
        )
    return budget // row_bytes
