"""Torch's settings of a process that computes: threads, by the size of its model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

# A product is divided among threads only if each has enough to compute; smaller models
# spend more on starting and joining threads than they gain (docs/performance.md).
PARAMETERS_PER_THREAD = 4_000_000


def available_cores() -> int:
    """Return the number of CPU cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(
    setting: int | str | None,
    models: Iterable[Any],
    *,
    processes: int,
    device: torch.device | str | None = None,
) -> int | None:
    """Return the number of threads for a process's models.

    Args:
        setting: ``resources.torch_num_threads``.
        models: The models, as ``nn.Module``; the largest one counts.
        processes: Processes of the run that compute at the same time.
        device: The models' device; on accelerators nothing is chosen.

    Returns:
        The number; None leaves torch's own, which ``OMP_NUM_THREADS`` sets.
    """
    if setting != "auto":
        return None if setting is None else int(setting)
    is_cpu = device is None or getattr(device, "type", str(device)) == "cpu"
    if not is_cpu or _environment_decides():
        return None
    largest = max((_num_parameters(m) for m in models), default=0)
    share = max(1, available_cores() // max(1, processes))
    return min(share, max(1, largest // PARAMETERS_PER_THREAD))


@contextlib.contextmanager
def torch_settings(num_threads: int | None) -> Iterator[None]:
    """Set what torch computes with inside the block, and restore it afterwards.

    With a seed RLlib turns on torch's deterministic algorithms, and these fill all new
    memory by default, so that reading it by mistake gives equal results. That costs a
    pass over every intermediate result and is off inside the block.

    Args:
        num_threads: Number of CPU threads; None changes nothing.
    """
    import torch
    from torch.utils import deterministic

    before = torch.get_num_threads(), deterministic.fill_uninitialized_memory
    if num_threads is not None and num_threads != before[0]:
        torch.set_num_threads(num_threads)
    deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        if torch.get_num_threads() != before[0]:
            torch.set_num_threads(before[0])
        deterministic.fill_uninitialized_memory = before[1]


def _num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _environment_decides() -> bool:
    """Return whether the user set ``OMP_NUM_THREADS``.

    Ray sets it in actors to their CPUs if it is not set. What an actor's process
    inherited tells whether the user did.
    """
    import ray

    inherited = Path("/proc/self/environ")
    in_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id()
    if in_actor and inherited.is_file():
        return b"OMP_NUM_THREADS=" in inherited.read_bytes()
    return "OMP_NUM_THREADS" in os.environ
