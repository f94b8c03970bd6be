"""Argument checks of losses and advantages; each message has value, rule and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from rllib_llm.errors import did_you_mean


def check_same_shape(**arrays: Any) -> None:
    """Refuse arrays whose shapes differ, so that nothing broadcasts by accident."""
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise ValueError(
            f"Shapes differ: {listed}. They must be equal. "
            "Expand the smaller ones to one entry per token first."
        )


def check_mask(loss_mask: torch.Tensor, **arrays: torch.Tensor) -> None:
    """Refuse a mask that is not boolean or not shaped like ``arrays``."""
    if loss_mask.dtype != torch.bool:
        raise ValueError(
            f"loss_mask has dtype {loss_mask.dtype}. It must be torch.bool, "
            "True where a token is trained. Pass loss_mask.bool()."
        )
    check_same_shape(loss_mask=loss_mask, **arrays)


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a ``value`` that is not one of ``choices``."""
    options = list(choices)
    if value not in options:
        raise ValueError(
            f"{name} is {value!r}. It must be one of {options}. "
            + did_you_mean(str(value), options)
        )


def check_positive(name: str, value: float, remedy: str) -> None:
    """Refuse a ``value`` that is not a finite number above 0."""
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}. It must be finite and above 0. {remedy}")


def check_unit_interval(**values: float) -> None:
    """Refuse numbers outside [0, 1], NaN included."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(
                f"{name} is {value}. It must lie in [0, 1]. Use e.g. 1.0 for tokens "
                "and 0.95 between messages."
            )


def check_finite(name: str, array: np.ndarray, remedy: str) -> None:
    """Refuse NaN and infinity, naming the first place that holds one."""
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(
            f"{name}[{bad[0]}] is {array.flat[bad[0]]} ({bad.size} of {array.size} "
            f"entries are not finite). All must be finite. {remedy}"
        )


def check_vector(name: str, array: np.ndarray) -> None:
    """Refuse an array that is not one-dimensional."""
    if array.ndim != 1:
        raise ValueError(
            f"{name} has shape {list(array.shape)}. It must have one dimension. "
            "Flatten it, or pass one episode at a time."
        )
