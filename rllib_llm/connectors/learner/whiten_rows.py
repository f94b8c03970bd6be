"""Standardisation of advantages in the rows of all Learners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rllib_llm.advantages.whitening import masked_moments, whiten_with_moments
from rllib_llm.distributed import all_reduce_sum


def whiten_rows(
    arrays: Sequence[np.ndarray],
    masks: Sequence[np.ndarray],
    device: torch.device,
    *,
    agents: Sequence[np.ndarray] | None = None,
    counted: Sequence[np.ndarray] | None = None,
) -> None:
    """Standardise advantages in place, over all Learners.

    All Learners must call it equally often, also one without rows, with empty lists.

    Args:
        arrays: Advantages of each batch, changed where trained. float64 [B, T]
        masks: Whether a token is trained. bool [B, T]
        device: Device of the collective operations.
        agents: Number of each row's agent: each agent's tokens are standardised alone.
            None: all together. int [B]
        counted: Tokens of which the moments are; None: all that are trained. [B, T]
    """
    counted = masks if counted is None else counted
    count = 1
    if agents is not None:
        # The sum is an upper bound of the number of agents. All Learners need the same
        # number, because each pass of the loop below is a collective operation.
        most = max((int(a.max(initial=-1)) for a in agents), default=-1) + 1
        count = int(all_reduce_sum([most], device)[0])
    for agent in range(count):
        here = [
            mask if agents is None else mask & (agents[i][:, None] == agent)
            for i, mask in enumerate(masks)
        ]
        by_batch = [
            masked_moments(array, part & of_moments)
            for array, part, of_moments in zip(arrays, here, counted, strict=True)
        ]
        sums = np.sum([(0.0, 0.0, 0.0), *by_batch], axis=0)
        number, total, squares = all_reduce_sum(sums.tolist(), device)
        if not number:
            continue
        for array, part in zip(arrays, here, strict=True):
            whitened = whiten_with_moments(array, part, (number, total, squares))
            array[part] = whitened[part]
