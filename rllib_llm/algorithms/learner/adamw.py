"""AdamW for parameters of any precision, with bounded temporaries."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.adamw import adamw

_MASTER = "master"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_LOW = (torch.bfloat16, torch.float16)
BLOCK = 2**22
"""Elements per call of torch's AdamW, independent of the parameters' sizes."""

# Bytes per element of the block in work: torch needs two float32 temporaries; a
# low-precision gradient is converted as well.
_TEMPORARY_BYTES = {False: 8, True: 12}


class MixedPrecisionAdamW(torch.optim.AdamW):
    """AdamW that keeps float32 masters of bfloat16 and float16 parameters.

    A bfloat16 weight of 0.02 cannot move by less than about 1e-4, so usual learning
    rates would not change it at all. Here its moments and a float32 copy accumulate
    the steps; the parameter is that copy, rounded (Micikevicius et al. 2018,
    arXiv:1710.03740). Float32 parameters are treated as by ``torch.optim.AdamW``.

    A step works through blocks of :data:`BLOCK` elements: temporaries and converted
    gradients exist for one of them, not for the whole model.

    A parameter that other code has written to (a restored state) is read again.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Take one step."""
        assert closure is None, "Gradients come from the Learner, not from a closure."
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            for parameter in trained:
                self._prepare(parameter)
            self._read_masters_again(trained)
            for block in _blocks(trained):
                self._step_block(group, block)
            for parameter in trained:
                if parameter.numel() > BLOCK:  # its blocks incremented copies
                    self.state[parameter]["step"] += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state without rounding it to the parameters' precision."""
        with self._seen_as_float32():
            super().load_state_dict(state_dict)

    def _prepare(self, parameter: torch.Tensor) -> None:
        """Create the state of a new parameter."""
        state = self.state[parameter]
        if not state:
            # The state of torch's AdamW, so that its load_state_dict() accepts it.
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32)
        if parameter.dtype in _LOW and _MASTER not in state:
            state[_MASTER] = parameter.detach().float()

    def _read_masters_again(self, parameters: list[torch.Tensor]) -> None:
        """Copy low-precision parameters that other code has written to their masters.

        A restored or copied weight: stepping from the old master would undo it.
        """
        lows = [p for p in parameters if p.dtype in _LOW]
        if not lows:
            return
        changed = [_was_written_to(p, self.state[p][_MASTER]) for p in lows]
        # Looked at together, so that the host waits for the device once per step.
        for parameter, was_changed in zip(
            lows, torch.stack(changed).tolist(), strict=True
        ):
            if was_changed:
                self.state[parameter][_MASTER].copy_(parameter)

    def _step_block(
        self, group: dict[str, Any], block: list[tuple[torch.Tensor, slice]]
    ) -> None:
        """Update parts of parameters, each a slice of the flattened parameter."""
        of_state: dict[str, list[torch.Tensor]] = {n: [] for n in _MOMENTS}
        weights, gradients, steps, lows = [], [], [], []
        for parameter, where in block:
            state = self.state[parameter]
            is_whole = parameter.numel() <= BLOCK
            weight = _part(parameter.detach(), where)
            if parameter.dtype in _LOW:
                master = _part(state[_MASTER], where)
                lows.append((weight, master))
                weight = master
            weights.append(weight)
            # Copies a low-precision gradient, for this block only; no copy of a float32
            # one.
            gradients.append(_part(parameter.grad, where).float())
            for name in _MOMENTS:
                of_state[name].append(_part(state[name], where))
            # adamw() increments it, and a parameter in several blocks takes one step
            # only.
            steps.append(state["step"] if is_whole else state["step"].clone())
        beta1, beta2 = group["betas"]
        adamw(
            weights,
            gradients,
            *of_state.values(),
            [],
            steps,
            foreach=group["foreach"],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for low, master in lows:
            # Rounded once per step from the exact sum; rounding errors do not
            # accumulate.
            low.copy_(master)

    @contextlib.contextmanager
    def _seen_as_float32(self) -> Iterator[None]:
        """Make low-precision parameters appear to torch as float32, without a copy."""
        lows = {
            parameter: parameter.data
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.dtype in _LOW
        }
        gradients = {parameter: parameter.grad for parameter in lows}
        for parameter in lows:
            parameter.grad = None
            parameter.data = torch.empty(0, device=parameter.device)
        try:
            yield
        finally:
            for parameter, low in lows.items():
                parameter.data = low
                parameter.grad = gradients[parameter]


def step_bytes(parameters: list[torch.Tensor]) -> int:
    """Return the bytes a step needs besides parameters, gradients and state.

    Args:
        parameters: The trained parameters; only shapes and dtypes are read.
    """
    blocks = [
        sum(
            (where.stop - where.start) * _TEMPORARY_BYTES[parameter.dtype in _LOW]
            for parameter, where in block
        )
        for block in _blocks(parameters)
    ]
    return max(blocks, default=0)


def _blocks(
    parameters: list[torch.Tensor],
) -> Iterator[list[tuple[torch.Tensor, slice]]]:
    """Split parameters, each flattened, into blocks of at most ``BLOCK`` elements.

    Only larger parameters are divided.
    """
    block: list[tuple[torch.Tensor, slice]] = []
    room = BLOCK
    for parameter in parameters:
        start, end = 0, parameter.numel()
        if room < end <= BLOCK:
            yield block
            block, room = [], BLOCK
        while start < end:
            stop = min(end, start + room)
            block.append((parameter, slice(start, stop)))
            room -= stop - start
            start = stop
            if not room:
                yield block
                block, room = [], BLOCK
    if block:
        yield block


def _part(tensor: torch.Tensor, where: slice) -> torch.Tensor:
    """Return the elements of a slice, without a copy."""
    if where.stop - where.start == tensor.numel():
        return tensor
    return tensor.view(-1)[where]


def _was_written_to(parameter: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
    """Return whether a parameter is not its rounded master. bool scalar"""
    flat, masters = parameter.detach().view(-1), master.view(-1)
    # In parts: a comparison has temporaries of its size.
    differ = [
        (part.to(parameter.dtype) != values).any()
        for part, values in zip(masters.split(BLOCK), flat.split(BLOCK), strict=True)
    ]
    return torch.stack(differ).any()
