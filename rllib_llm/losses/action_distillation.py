"""Divergence between a policy and a teacher, exact over the admissible actions.

With ``head: score`` a turn is one choice among K listed actions, so the sum over
actions needs no samples.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from rllib_llm.losses._checks import check_choice, check_same_shape

DIRECTIONS = ("forward", "reverse")


def action_divergence(
    logps: Tensor, teacher_logps: Tensor, direction: str = "forward"
) -> Tensor:
    """Return the Kullback-Leibler divergence of each turn, in nats. [M]

    "forward": ``sum_a p_T(a) (log p_T(a) - log p(a))``, the cross-entropy of LLM4Teach
    (Zhou et al. 2023, arXiv:2311.13373) less the teacher's entropy, which has no
    gradient. "reverse": ``sum_a p(a) (log p(a) - log p_T(a))``. Terms of probability 0
    are 0.

    Args:
        logps: Log-probabilities under the policy; ``-inf`` where a turn has fewer than
            K actions. [M, K]
        teacher_logps: The same under the teacher, constants; ``-inf`` also for actions
            that it never takes. [M, K]
        direction: "forward" or "reverse".

    Raises:
        ValueError: If shapes differ, or the direction is unknown.
    """
    check_choice("direction", direction, DIRECTIONS)
    check_same_shape(logps=logps, teacher_logps=teacher_logps)
    teacher_logps = teacher_logps.detach()
    p, q = teacher_logps, logps
    if direction == "reverse":
        p, q = q, p
    never = p == -torch.inf
    # Filled before the difference: inf - inf is NaN, also in the gradient.
    p, q = p.masked_fill(never, 0.0), q.masked_fill(never, 0.0)
    return (p.exp() * (p - q)).masked_fill(never, 0.0).sum(-1)


@dataclasses.dataclass(frozen=True)
class ActionProbs:
    """Probabilities of all admissible actions of a batch's trained turns.

    Attributes:
        logps: Log-probabilities under the policy being trained; the action taken is
            the first, and ``-inf`` fills turns of fewer actions. [M, K]
        rows: Row of each turn's trained token. int64 [M]
        columns: Column of it. int64 [M]
        reference: Log-probabilities under the frozen reference. [M, K]
        expert: Those of the environment's expert; ``-inf`` where it never takes an
            action. [M, K]
    """

    logps: Tensor
    rows: Tensor
    columns: Tensor
    reference: Tensor | None = None
    expert: Tensor | None = None

    def at_tokens(self, values: Tensor, like: Tensor) -> Tensor:
        """Return one number per turn at its trained token, else 0. [M] -> [B, T]

        Args:
            values: One number per turn. [M]
            like: A column of the batch. [B, T]
        """
        zeros = values.new_zeros(like.shape)
        return zeros.index_put((self.rows, self.columns), values)
