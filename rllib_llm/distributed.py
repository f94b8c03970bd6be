"""Sums over Learners; with a single Learner every function is the identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist

_MESSAGE = 2**22  # maximum float32 values per message: 16 MiB


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


def sum_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each scalar's sum over all Learners, which must have the same keys."""
    # Sorted: all Learners must stack the values in the same order.
    if world_size() == 1 or not tensors:
        return dict(tensors)
    keys = sorted(tensors)
    values = torch.stack([tensors[key] for key in keys])
    dist.all_reduce(values)
    return dict(zip(keys, values, strict=True))


def gather(values: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the concatenated vectors of all Learners.

    Args:
        values: This Learner's vector; the others may have other lengths. [N]

    Returns:
        The concatenation [M], and the offset of this Learner's values.
    """
    if world_size() == 1:
        return values, 0
    rank = dist.get_rank()
    lengths = torch.zeros(world_size(), dtype=torch.int64, device=values.device)
    lengths[rank] = len(values)
    dist.all_reduce(lengths)
    start, end = int(lengths[:rank].sum()), int(lengths[: rank + 1].sum())
    # A sum with zeros for the other Learners' values: every backend has all_reduce,
    # while all_gather of different lengths is not portable.
    gathered = values.new_zeros(int(lengths.sum()))
    gathered[start:end] = values
    if len(gathered):
        dist.all_reduce(gathered)
    return gathered, start


def sum_by_key(sums: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Return each key's sum over all Learners; Learners may have different keys."""
    if world_size() == 1:
        return dict(sums)
    # Exchange the keys as bytes first: all must reduce the same keys.
    encoded = "".join(f"{key}\n" for key in sums).encode()
    letters, _ = gather(torch.tensor(list(encoded), dtype=torch.int32, device=device))
    keys = sorted(set(bytes(letters.tolist()).decode().splitlines()))
    totals = all_reduce_sum([sums.get(key, 0.0) for key in keys], device)
    return dict(zip(keys, totals, strict=True))


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace each gradient by its sum over all Learners, in messages of limited size.

    A parameter without a gradient counts as zero, so that every Learner sends the same
    number of values.
    """
    if world_size() == 1:
        return
    message: list[torch.Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        for part in parameter.grad.view(-1).split(_MESSAGE):
            if sum(map(len, message)) + len(part) > _MESSAGE:
                _sum_together(message)
                message = []
            message.append(part)
    if message:
        _sum_together(message)


def _sum_together(parts: list[torch.Tensor]) -> None:
    """Replace vectors by their sums over all Learners, in one message of float32."""
    flat = torch.cat([part.float() for part in parts])
    dist.all_reduce(flat)
    sums = flat.split([len(part) for part in parts])
    for part, total in zip(parts, sums, strict=True):
        part.copy_(total)
