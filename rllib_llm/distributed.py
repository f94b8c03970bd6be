"""Sums and shards over Learners; with a single one every function is the identity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

_MESSAGE = 2**22  # maximum float32 values per message: 16 MiB

_Part = TypeVar("_Part")


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
    number of values. It stays without one if no Learner has one, e.g. the vision tower
    in a minibatch without pictures. Shards have sums already, from the backward pass.
    """
    if world_size() == 1:
        return
    whole = [parameter for parameter in parameters if not is_shard(parameter)]
    if not whole:
        return
    is_missing = [parameter.grad is None for parameter in whole]
    reached = whole[0].new_tensor([not m for m in is_missing], dtype=torch.float32)
    message: list[torch.Tensor] = [reached]
    for parameter in whole:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        for part in parameter.grad.view(-1).split(_MESSAGE):
            if sum(map(len, message)) + len(part) > _MESSAGE:
                _sum_together(message)
                message = []
            message.append(part)
    _sum_together(message)
    if any(is_missing):
        for parameter, number in zip(whole, reached.tolist(), strict=True):
            if not number:
                parameter.grad = None


def _sum_together(parts: list[torch.Tensor]) -> None:
    """Replace vectors by their sums over all Learners, in one message of float32."""
    flat = torch.cat([part.float() for part in parts])
    dist.all_reduce(flat)
    sums = flat.split([len(part) for part in parts])
    for part, total in zip(parts, sums, strict=True):
        part.copy_(total)


# Shards ------------------------------------------------------------------------------


def is_shard(tensor: torch.Tensor) -> bool:
    """Return whether this Learner holds a part of a tensor only (a DTensor)."""
    # By its method: importing torch's DTensor takes seconds, and most runs have none.
    return hasattr(tensor, "to_local")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this Learner's part of a tensor: no copy, and no part of a graph."""
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def is_first() -> bool:
    """Return whether this is the Learner whose answer counts for all."""
    return world_size() == 1 or dist.get_rank() == 0


def gathered(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a whole tensor on the first Learner, None on others; all must call it.

    Tensors that are no shards are returned everywhere.
    """
    if not is_shard(tensor):
        return tensor
    whole = tensor.full_tensor()
    return whole if is_first() else None


def shard_like(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor as a shard like ``like``; no Learner waits for another."""
    if not is_shard(like) or is_shard(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    # None: every Learner has the values and cuts its own part.
    return distribute_tensor(
        whole.to(local(like).device),
        like.device_mesh,
        like.placements,
        src_data_rank=None,
    )


def equal_passes(
    parts: Iterable[_Part], device: torch.device | str, *, is_sharded: bool
) -> Iterator[_Part | None]:
    """Yield the parts, then None as often as another Learner has more of them.

    A pass through sharded layers gathers them from all Learners, which must therefore
    make the same number of passes.

    Args:
        parts: This Learner's micro-batches; it may have none.
        device: Device of the messages.
        is_sharded: Whether passes gather layers; if not, only the parts are yielded.
    """
    if not is_sharded:
        yield from parts
        return
    device = torch.device(device)
    for part in parts:
        all_reduce_sum([1.0], device)
        yield part
    while all_reduce_sum([0.0], device)[0]:
        yield None


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of squares of all entries, those of other Learners' shards too.

    Args:
        tensors: Gradients: shards, or tensors that are equal on all Learners; not
            empty. All Learners must give the same ones.
    """
    whole = [_norm(t) for t in tensors if not is_shard(t)]
    shards = [_norm(local(t)) for t in tensors if is_shard(t)]
    if not shards:
        return torch.stack(whole).square().sum()
    total = torch.stack(shards).square().sum()
    dist.all_reduce(total)
    return total + torch.stack(whole).square().sum() if whole else total


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float32)
