"""Influence of a preference pair on a validation return, by one finite step.

A step of gradient descent on a pair's loss changes the expected return J of validation
tasks by ``-lr grad J . grad L(z)`` to first order. So the influence of pair z is ::

    I(z) = -grad J . grad L(z)

the influence function (Koh & Liang 2017, arXiv:1703.04730) with the identity in the
place of the inverse Hessian. It needs no gradient of a pair: with the unit vector
``u = grad J / |grad J|`` and a small step eta ::

    [L(z; theta) - L(z; theta + eta u)] / eta  ->  -u . grad L(z) = I(z) / |grad J|

Data selection by influence and value: DITS (arXiv:2502.00955), whose own estimator is
another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from rllib_llm.losses._checks import check_positive


def unit_steps(gradients: Sequence[Tensor | None], size: float) -> list[Tensor | None]:
    """Return the step of a length along a gradient, one part per parameter.

    Without any gradient, or with zeros alone, there is no direction: the parts are 0.

    Args:
        gradients: Gradient of each parameter; None: it has none.
        size: Length eta of the step, > 0.

    Raises:
        ValueError: If a gradient is not finite.
    """
    check_positive("step_size", size, "Use e.g. 0.01.")
    given = [gradient for gradient in gradients if gradient is not None]
    # In float64, so that the sum of many squares is exact enough.
    squares = [float(gradient.double().square().sum()) for gradient in given]
    norm = float(np.sqrt(sum(squares)))
    if not np.isfinite(norm):
        raise ValueError(f"The gradient has the norm {norm}.")
    factor = size / norm if norm else 0.0
    return [None if g is None else g * factor for g in gradients]


@contextlib.contextmanager
def moved(
    parameters: Sequence[Tensor], steps: Sequence[Tensor | None]
) -> Iterator[None]:
    """Add steps to parameters in place; afterwards restore them, bit by bit.

    Args:
        parameters: The parameters.
        steps: Tensor to add to each; None: 0.
    """
    # Copies: to subtract the step again would leave rounding errors.
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter, step in zip(parameters, steps, strict=True):
                if step is not None:
                    parameter += step
        yield
    finally:
        with torch.no_grad():
            for parameter, kept in zip(parameters, before, strict=True):
                parameter.copy_(kept)


def influences(before: Tensor, after: Tensor, step_size: float) -> Tensor:
    """Return each pair's influence, divided by the norm of the return's gradient.

    Args:
        before: Loss of each pair. [P]
        after: Its loss after a step of this length that raises the return. [P]
        step_size: Length eta of the step, > 0.
    """
    return (before.double() - after.double()) / step_size


def pair_scores(
    gaps: np.ndarray, pair_influences: np.ndarray, weight: float
) -> np.ndarray:
    """Return the score of each pair: ``gap + weight I / sqrt(mean(I^2))``.

    Divided by their root mean square, not centred: the sign says whether training on a
    pair raises the return. So neither the length of the return's gradient nor that of
    the step counts.

    Args:
        gaps: Difference of the values of the two replies. [P]
        pair_influences: I, in any unit that the pairs share. [P]
        weight: kappa >= 0.
    """
    scale = np.sqrt(np.mean(np.square(pair_influences))) if len(gaps) else 0.0
    standard = pair_influences / scale if scale else np.zeros_like(pair_influences)
    return np.asarray(gaps + weight * standard, np.float64)
