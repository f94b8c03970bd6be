"""Losses of models that score episodes: reward models.

All take scores, which are logits, and return one loss per pair or episode.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


def pairwise_loss(
    chosen: Tensor, rejected: Tensor, *, margin: float = 0.0, centering: float = 0.0
) -> Tensor:
    """Return the Bradley-Terry loss of pairs.

    ``-log sigmoid(s_c - s_r - margin) + centering * (s_c^2 + s_r^2)``, as in Ouyang et
    al. 2022, arXiv:2203.02155, eq. 1, with a margin (Touvron et al. 2023,
    arXiv:2307.09288) and a term that keeps scores near 0: comparisons alone leave them
    undetermined up to a constant for each task.

    Args:
        chosen: Scores of the preferred episodes. [P]
        rejected: Scores of the others. [P]
        margin: Difference that is asked for, >= 0.
        centering: Weight of the squared scores, >= 0.
    """
    loss = -logsigmoid(chosen - rejected - margin)
    return loss + centering * (chosen.square() + rejected.square())


def outcome_loss(scores: Tensor, success: Tensor) -> Tensor:
    """Return the cross-entropy of success, of which the score is the logit.

    Cobbe et al. 2021, arXiv:2110.14168 (verifiers of whole solutions).

    Args:
        scores: Score of each episode. [N]
        success: 1 for solved tasks, 0 for others. [N]
    """
    return binary_cross_entropy_with_logits(
        scores, success.to(scores.dtype), reduction="none"
    )
