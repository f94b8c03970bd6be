"""Copies of batch columns in host memory, from which counts and positions are read.

Reading a number from an accelerator makes the host wait until all work given to it is
done. Masks and indices are built on the host, so their copies stay there: the Learner
counts tokens and finds their positions in these, and uploads positions without waiting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from torch import Tensor

from rllib_llm.data import columns

NAMES = (
    Columns.LOSS_MASK,
    columns.ATTENTION_MASK,
    columns.TURN_IDS,
    columns.TURN_STEPS,
    columns.EPISODE_INDEX,
    columns.MULTI_AGENT_EPISODE_INDEX,
    columns.AGENT_INDEX,
    columns.BOOTSTRAP_COLUMN,
    columns.BOOTSTRAPS_AGENT_TURN,
    columns.CHOICE_STARTS,
    columns.CANDIDATES,
    columns.SUCCESS,
)


@dataclasses.dataclass
class HostColumns:
    """Columns of a batch in host memory.

    Attributes:
        arrays: The columns by name, [B] or [B, T].
    """

    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> HostColumns:
        """Return the columns of ``data`` whose copies are kept."""
        return cls({n: _array(data[n]) for n in NAMES if n in data})

    def select(self, rows: np.ndarray, end: int | None = None) -> HostColumns:
        """Return these rows, and the first ``end`` columns of [B, T] arrays."""
        return HostColumns(
            {
                name: array[rows, :end] if array.ndim > 1 else array[rows]
                for name, array in self.arrays.items()
            }
        )

    def replace(self, **arrays: np.ndarray) -> HostColumns:
        """Return a copy with other arrays, by name of the column."""
        return HostColumns({**self.arrays, **arrays})


def read(batch: Mapping[str, Any], name: str) -> np.ndarray:
    """Return a column as an array; without a copy, the host waits for the device."""
    host = batch.get(columns.HOST)
    if host is None or name not in host.arrays:
        return _array(batch[name])
    return host.arrays[name]


def keep(batch: dict[str, Any], name: str, array: np.ndarray) -> None:
    """Keep a copy of a new column, which the caller uploads."""
    if columns.HOST in batch:
        batch[columns.HOST] = batch[columns.HOST].replace(**{name: array})


def count(batch: Mapping[str, Any]) -> int:
    """Return the number of trained tokens."""
    return int(read(batch, Columns.LOSS_MASK).sum())


def trained_places(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return row and column of each trained token, on the batch's device. 2 x [N]"""
    mask = batch[Columns.LOSS_MASK]
    return places(read(batch, Columns.LOSS_MASK), mask.device)


def places(mask: np.ndarray, device: torch.device) -> tuple[Tensor, ...]:
    """Return the indices of true entries, in row-major order, one [N] per dimension."""
    return tuple(upload(np.stack(np.nonzero(mask)), device))


def upload(array: np.ndarray, device: torch.device | str | None) -> Tensor:
    """Return a tensor on a device; the host does not wait for the device's work."""
    # From memory that is not pinned, the driver copies before it returns: the array may
    # change afterwards.
    return torch.as_tensor(array).to(device, non_blocking=True)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
