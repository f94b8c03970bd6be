"""Builds and registers the stand-in accelerator of ``standin.cpp``."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("standin.cpp")
NAME = "standin"
_PACKAGE = f"{os.sep}rllib_llm{os.sep}"
_Listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def compiler() -> str | None:
    """Return the C++ compiler, None without one."""
    return shutil.which("g++")


def build() -> Path:
    """Return the compiled library; one process compiles, the others wait for it."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()
    # One for all processes of a test session and for later ones.
    folder = Path(tempfile.gettempdir()) / f"rllib_llm_test_builds_{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"standin_{key[:16]}.so"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".tmp")
            subprocess.run(_command(unfinished), check=True)
            unfinished.rename(library)
    return library


def _command(target: Path) -> list[str]:
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-w"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    headers = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    names = ["-ltorch", "-ltorch_cpu", "-lc10"]
    return [
        str(compiler()),
        *flags,
        abi,
        *headers,
        str(SOURCE),
        *libraries,
        *names,
        "-o",
        str(target),
    ]


class StandIn:
    """The registered device, its memory, and the places where the host waits for it.

    Autograd starts one thread per device at the first backward pass of a process, so
    it must be registered before.

    Attributes:
        device: The torch.device.
        capacity: Bytes of memory that it reports; larger tensors are not refused.
    """

    def __init__(self, library: Path):
        torch.ops.load_library(library)
        self._library = ctypes.CDLL(str(library))
        for name in ("live", "peak", "host_live", "host_peak"):
            getattr(self._library, f"standin_{name}_bytes").restype = ctypes.c_int64
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, self._device_module())
        torch.utils.generate_methods_for_privateuse1_backend()
        self._library.standin_init()
        # As CUDA's: torch would otherwise replace Parameters by new ones, and untie
        # weights, where a module moves to a device that it does not know.
        torch.__future__.set_swap_module_params_on_conversion(True)
        self.device = torch.device(NAME, 0)
        self.capacity = 2**34

    def _device_module(self) -> types.ModuleType:
        """Return the functions that torch expects in ``torch.standin``."""
        module = types.ModuleType(NAME)
        functions = {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "is_bf16_supported": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "set_device": lambda index: None,
            "mem_get_info": lambda *a: (self.capacity - self.live_bytes, self.capacity),
            "memory_allocated": lambda *args: self.live_bytes,
            "memory_reserved": lambda *args: self.live_bytes,
            "synchronize": lambda *args: None,
            "_is_in_bad_fork": lambda: False,
            "manual_seed": lambda seed: None,
            "manual_seed_all": lambda seed: None,
            "get_rng_state": lambda device=None: torch.empty(0, dtype=torch.uint8),
            "set_rng_state": lambda state, device=None: None,
            "get_amp_supported_dtype": lambda: [torch.bfloat16],
        }
        vars(module).update(functions)
        return module

    @property
    def live_bytes(self) -> int:
        """Bytes of all tensors on the device."""
        return self._library.standin_live_bytes()

    @property
    def peak_bytes(self) -> int:
        """The largest number of such bytes since :meth:`reset_peak`."""
        return self._library.standin_peak_bytes()

    @property
    def host_live_bytes(self) -> int:
        """Bytes of tensors in host memory that were allocated since registering."""
        return self._library.standin_host_live_bytes()

    @property
    def host_peak_bytes(self) -> int:
        """The largest number of such bytes since :meth:`reset_peak`."""
        return self._library.standin_host_peak_bytes()

    def reset_peak(self) -> None:
        """Start a new measurement of both peaks."""
        self._library.standin_reset_peak()

    @contextlib.contextmanager
    def host_syncs(self):
        """Yield a :class:`HostSyncs` that is filled until the end of the block."""
        syncs = HostSyncs()

        @_Listener
        def listen(reason: bytes) -> None:
            syncs.by_phase[syncs.phase][f"{reason.decode()} at {place()}"] += 1

        self._library.standin_listen(listen)
        try:
            yield syncs
        finally:
            self._library.standin_listen(_Listener(0))

    @contextlib.contextmanager
    def no_waits(self):
        """Raise a RuntimeError at the end of the block if the host waited inside."""
        with self.host_syncs() as syncs:
            yield
        waits = dict(syncs.by_phase[""])
        if waits:
            raise RuntimeError(f"The host waits for the device: {waits}")


class HostSyncs:
    """Operations for which a CUDA host would wait, by phase, reason and line.

    A line is the innermost one of the package on the stack, with the innermost one
    outside of package and torch if the package called other code.

    Attributes:
        phase: The phase that new entries belong to.
        by_phase: A Counter for each phase.
    """

    def __init__(self):
        self.phase = ""
        self.by_phase = collections.defaultdict(collections.Counter)

    def during(self, phase: str, function):
        """Return a function whose entries belong to ``phase``."""

        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            before, self.phase = self.phase, phase
            try:
                return function(*args, **kwargs)
            finally:
                self.phase = before

        return wrapped


def place() -> str:
    """Return the line that an operation was called from."""
    # The listener's own frame is the outermost one in autograd's threads.
    frame, outside = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        line = f"{name.rpartition(_PACKAGE)[2]}:{frame.f_lineno}"
        if _PACKAGE in name and "site-packages" not in name:
            return line + outside
        is_ours = name == __file__ or f"{os.sep}torch{os.sep}" in name
        if not outside and not is_ours:
            outside = f" ({'/'.join(name.split(os.sep)[-2:])}:{frame.f_lineno})"
        frame = frame.f_back
    return f"(no line of the package){outside}"
