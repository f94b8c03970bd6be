"""Sums over Learners; with a single Learner everything is the identity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist


def world_size() -> int:
    """Return the number of Learners that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_sum(values: Sequence[float], device: torch.device) -> list[float]:
    """Return the element-wise sum of ``values`` over all Learners."""
    if world_size() == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    return tensor.tolist()


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace each gradient by its sum over all Learners, in one message.

    A parameter that this Learner's rows did not touch counts as zero, so that every
    Learner sends the same number of values.
    """
    if world_size() == 1:
        return
    parameters = list(parameters)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([p.grad.flatten().float() for p in parameters])
    dist.all_reduce(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.grad.copy_(flat[start:end].view_as(parameter))
        start = end
