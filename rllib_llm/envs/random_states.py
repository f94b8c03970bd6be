"""Isolation and comparison of process-wide random states.

Environments run in threads of one process, so one that seeds or draws from the modules
``random`` and ``numpy.random``, or torch's default generator, disturbs all others.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

_ONE_AT_A_TIME = threading.RLock()


class IsolatedRandomState:
    """Private copies of the global random states, for a library that uses these.

    Keep one object per episode, and make every call of the library inside of
    :meth:`swapped_in`: the library then reads and changes states that no other
    environment sees. Calls of all environments run one at a time, because there is
    only one global state. The object can be copied and pickled with the environment.

    Example::

        def start(self, rng):
            self.state = IsolatedRandomState(int(rng.integers(2**31)))
            with self.state.swapped_in():
                return library.new_puzzle()

    Args:
        seed: Seed of all states, in [0, 2**32).
        torch: Whether torch's default CPU generator is swapped, too. Set it only if
            the library needs it: training also uses torch, in threads that do not wait
            for environments.

    Raises:
        RuntimeError: With ``torch=True`` before torch has been imported.
    """

    def __init__(self, seed: int, *, torch: bool = False):
        self._states: dict[str, Any] = {
            "random": random.Random(seed).getstate(),
            "numpy.random": np.random.RandomState(seed).get_state(),
        }
        if torch:
            if "torch" not in sys.modules:
                raise RuntimeError(
                    "torch=True, but torch has not been imported. Import torch first, "
                    "or leave torch=False."
                )
            generator = sys.modules["torch"].Generator().manual_seed(seed)
            self._states["torch"] = generator.get_state()

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replace the process's random states by these ones inside the block."""
        with _ONE_AT_A_TIME:
            others = {name: _get(name) for name in self._states}
            _set_all(self._states)
            try:
                yield
            finally:
                # Keep the states after the calls, so that the next block continues.
                self._states = {name: _get(name) for name in self._states}
                _set_all(others)


def global_states() -> dict[str, bytes]:
    """Return the process-wide random states by name, for comparison."""
    kind, keys, *rest = np.random.get_state()
    states = {
        "random": repr(random.getstate()).encode(),
        "numpy.random": np.asarray(keys).tobytes() + repr((kind, rest)).encode(),
    }
    if "torch" in sys.modules:
        states["torch"] = _get("torch").numpy().tobytes()
    return states


def _get(name: str) -> Any:
    if name == "random":
        return random.getstate()
    if name == "numpy.random":
        return np.random.get_state()
    return sys.modules["torch"].get_rng_state()


def _set_all(states: dict[str, Any]) -> None:
    random.setstate(states["random"])
    np.random.set_state(states["numpy.random"])
    if "torch" in states:
        sys.modules["torch"].set_rng_state(states["torch"])
