"""AdamW for parameters of any precision, with bounded temporaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.adamw import adamw

from rllib_llm.distributed import local

_MASTER = "master"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_LOW = (torch.bfloat16, torch.float16)
BLOCK = 2**22
"""Elements per call of torch's AdamW, independent of the parameters' sizes."""

# Bytes per element of the block in work, by whether the parameter has low precision:
# torch needs two float32 temporaries; a low-precision gradient is converted as well.
_TEMPORARY_BYTES = {False: 8, True: 12}
# The block's moments and master, fetched from host memory.
_FETCHED_BYTES = {False: 8, True: 12}


class MixedPrecisionAdamW(torch.optim.AdamW):
    """AdamW that keeps float32 masters of bfloat16 and float16 parameters.

    A bfloat16 weight of 0.02 cannot move by less than about 1e-4, so usual learning
    rates would not change it at all. Here its moments and a float32 copy accumulate
    the steps; the parameter is that copy, rounded (Micikevicius et al. 2018,
    arXiv:1710.03740). Float32 parameters are treated as by ``torch.optim.AdamW``.

    A step works through blocks of :data:`BLOCK` elements: temporaries and converted
    gradients exist for one of them, not for the whole model.

    An element that other code has written to (a restored state) is read again. Of a
    sharded parameter a Learner updates its own part; the state is sharded like it.

    Args:
        params: Parameters, or groups of them.
        offload: Keep moments and masters in host memory. A block's are copied to the
            parameter's device for its step and back, so steps are equal to the bit.
        **settings: Arguments of ``torch.optim.AdamW``.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        *,
        offload: bool = False,
        **settings: Any,
    ) -> None:
        """Create an optimiser without a state; the first step creates it."""
        self.offload = offload
        super().__init__(params, **settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Take one step."""
        assert closure is None, "Gradients come from the Learner, not from a closure."
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            for parameter in trained:
                self._prepare(parameter)
            for block in _blocks(trained):
                self._step_block(group, block)
            for parameter in trained:
                # Its blocks incremented copies, or it has none: an empty shard.
                if not 0 < local(parameter).numel() <= BLOCK:
                    self.state[parameter]["step"] += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state in float32, each tensor to where this optimiser keeps it."""
        # Not by torch: it would round the tensors to the parameters' precision, and
        # move them to the parameters' device.
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [p for group in self.param_groups for p in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        for key, parameter in zip(keys, parameters, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                # adamw() reads the number of steps on the host.
                home = torch.device("cpu") if name == "step" else self._home(parameter)
                kept = torch.as_tensor(value).to(home, torch.float32)
                self.state[parameter][name] = kept

    def _home(self, parameter: torch.Tensor) -> torch.device:
        """Return the device that keeps a parameter's state."""
        return torch.device("cpu") if self.offload else parameter.device

    def _prepare(self, parameter: torch.Tensor) -> None:
        """Create the state of a new parameter."""
        state = self.state[parameter]
        if not state:
            # The state of torch's AdamW, so that its load_state_dict() accepts it.
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(
                    parameter, dtype=torch.float32, device=self._home(parameter)
                )
        if parameter.dtype in _LOW and _MASTER not in state:
            master = parameter.detach().to(self._home(parameter), torch.float32)
            state[_MASTER] = master

    def _step_block(
        self, group: dict[str, Any], block: list[tuple[torch.Tensor, slice]]
    ) -> None:
        """Update parts of parameters, each a slice of the flattened parameter."""
        of_state: dict[str, list[torch.Tensor]] = {n: [] for n in _MOMENTS}
        weights, gradients, steps, lows = [], [], [], []
        states = [self._fetch(*part) for part in block]
        for (parameter, where), state in zip(block, states, strict=True):
            is_whole = local(parameter).numel() <= BLOCK
            weight = _part(parameter.detach(), where)
            if parameter.dtype in _LOW:
                master = state[_MASTER]
                _read_again(weight, master)
                lows.append((weight, master))
                weight = master
            weights.append(weight)
            # Copies a low-precision gradient, for this block only; no copy of a float32
            # one.
            gradients.append(_part(parameter.grad, where).float())
            for name in _MOMENTS:
                of_state[name].append(state[name])
            # adamw() increments it, and a parameter in several blocks takes one step
            # only.
            step = self.state[parameter]["step"]
            steps.append(step if is_whole else step.clone())
        beta1, beta2 = group["betas"]
        adamw(
            weights,
            gradients,
            *of_state.values(),
            [],
            steps,
            foreach=group["foreach"],
            fused=_may_be_fused(weights, gradients, *of_state.values()),
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
        if self.offload:
            self._put_back(block, states)

    def _fetch(self, parameter: torch.Tensor, where: slice) -> dict[str, torch.Tensor]:
        """Return a slice of moments and master on the parameter's device.

        Views of the state; copies if it is offloaded.
        """
        return {
            name: _part(kept, where).to(parameter.device)
            for name, kept in self.state[parameter].items()
            if name != "step"
        }

    def _put_back(
        self,
        block: list[tuple[torch.Tensor, slice]],
        states: list[dict[str, torch.Tensor]],
    ) -> None:
        """Copy the slices that :meth:`_fetch` returned to host memory."""
        for (parameter, where), state in zip(block, states, strict=True):
            for name, copied in state.items():
                _part(self.state[parameter][name], where).copy_(copied)


def step_bytes(parameters: list[torch.Tensor], *, offload: bool = False) -> int:
    """Return the most bytes a step needs besides parameters, gradients and state.

    The fused kernel of CPUs needs no temporaries, only a converted gradient.

    Args:
        parameters: The trained parameters; only shapes and dtypes are read.
        offload: Whether the state is in host memory.
    """
    needs = {
        is_low: _TEMPORARY_BYTES[is_low] + offload * _FETCHED_BYTES[is_low]
        for is_low in (False, True)
    }
    blocks = [
        sum(
            (where.stop - where.start) * needs[parameter.dtype in _LOW]
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
        start, end = 0, local(parameter).numel()
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
    """Return the elements of a slice of this Learner's part, without a copy."""
    tensor = local(tensor)
    if where.stop - where.start == tensor.numel():
        return tensor
    return tensor.view(-1)[where]


def _read_again(low: torch.Tensor, master: torch.Tensor) -> None:
    """Copy elements that other code has written to their masters.

    Stepping from the old master would undo a restored or copied weight.
    """
    rounded = master.to(low.dtype)
    # On CPUs it is faster to look first. On other devices the host would wait for it.
    if low.device.type != "cpu" or not torch.equal(rounded, low):
        master.copy_(torch.where(rounded == low, master, low))


def _may_be_fused(*tensors: list[torch.Tensor]) -> bool | None:
    """Return True if torch's fused kernel for CPUs can step them; None: its choice.

    It reads every tensor once, which the other kernels do for each of a dozen
    operations, in the order of its memory and without looking at strides or dtypes.
    """
    is_plain = all(
        t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous()
        for each in tensors
        for t in each
    )
    return True if is_plain else None
