"""AdamW for parameters of any precision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_MASTER = "master"
_LOW = (torch.bfloat16, torch.float16)


class MixedPrecisionAdamW(torch.optim.AdamW):
    """AdamW that keeps float32 masters of bfloat16 and float16 parameters.

    A bfloat16 weight of 0.02 cannot move by less than about 1e-4, so usual learning
    rates would not change it at all. Here its moments and a float32 copy accumulate
    the steps; the parameter is that copy, rounded (Micikevicius et al. 2018,
    arXiv:1710.03740). Float32 parameters are treated as by ``torch.optim.AdamW``.

    A parameter that something else has written to (a restored state) is read anew.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step."""
        assert closure is None, "Gradients come from the Learner, not from a closure."
        with self._in_float32() as masters:
            super().step()
        for parameter, master in masters.items():
            if self.state.get(parameter):  # it had a gradient
                self.state[parameter][_MASTER] = master
                parameter.copy_(master)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state without rounding it to the parameters' precision."""
        with self._in_float32():
            super().load_state_dict(state_dict)

    @contextlib.contextmanager
    def _in_float32(self) -> Iterator[dict[torch.Tensor, torch.Tensor]]:
        """Let torch see float32 parameters and gradients meanwhile.

        Yields:
            The masters of the low-precision parameters.
        """
        lows, masters = {}, {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dtype in _LOW:
                    low, gradient = parameter.data, parameter.grad
                    lows[parameter] = low, gradient
                    masters[parameter] = self._master(parameter)
                    parameter.grad = None
                    parameter.data = masters[parameter]
                    if gradient is not None:
                        parameter.grad = gradient.float()
        try:
            yield masters
        finally:
            for parameter, (low, gradient) in lows.items():
                parameter.grad = None
                parameter.data = low
                parameter.grad = gradient

    def _master(self, parameter: torch.Tensor) -> torch.Tensor:
        master = self.state.get(parameter, {}).get(_MASTER)
        if master is None or not torch.equal(master.to(parameter.dtype), parameter):
            return parameter.data.float()
        return master
