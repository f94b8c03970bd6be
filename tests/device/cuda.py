"""A CUDA device, with the interface of the stand-in of ``standin.py``."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from standin import HostSyncs, place

_SYNC = "synchronizing CUDA operation"


class Cuda:
    """The first CUDA device, its memory, and the places where the host waits for it."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError(
                "RLLIB_LLM_TEST_DEVICE=cuda, but torch finds no CUDA device. Unset it "
                "to test with the stand-in."
            )
        self.device = torch.device("cuda", 0)
        # The library's workspaces, of this thread and autograd's, are not the model's.
        weight = torch.ones(256, 256, device=self.device, requires_grad=True)
        (weight @ weight).sum().backward()
        torch.cuda.synchronize()

    @property
    def live_bytes(self) -> int:
        """Bytes of all tensors on the device."""
        return torch.cuda.memory_allocated()

    @property
    def peak_bytes(self) -> int:
        """The largest number of such bytes since :meth:`reset_peak`."""
        return torch.cuda.max_memory_allocated()

    def reset_peak(self) -> None:
        """Start a new measurement of the peak."""
        torch.cuda.reset_peak_memory_stats()

    @contextlib.contextmanager
    def host_syncs(self):
        """Yield a :class:`HostSyncs` that is filled until the end of the block."""
        syncs = HostSyncs()

        def show(message: Any, *args: Any, **kwargs: Any) -> None:
            if _SYNC in str(message):
                syncs.by_phase[syncs.phase][f"wait at {place()}"] += 1

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            with _sync_debug_mode("warn"):
                yield syncs

    @contextlib.contextmanager
    def no_waits(self):
        """Raise a RuntimeError where the host would wait inside the block."""
        with _sync_debug_mode("error"):
            yield


@contextlib.contextmanager
def _sync_debug_mode(mode: str):
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
