"""Losses of models that score episodes: reward models.

Losses take scores, which are logits, and return one loss per pair or episode. The score
of an episode is that of its last turn, or the sum or mean over its turns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from rllib_llm.losses._checks import check_choice


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
        success: 1 for solved tasks, 0 for others, or a probability of that. [N]
    """
    return binary_cross_entropy_with_logits(
        scores, success.to(scores.dtype), reduction="none"
    )


def return_loss(scores: Tensor, returns: Tensor) -> Tensor:
    """Return the squared difference of scores and returns.

    If the score of an episode is the sum over its turns, the return is divided among
    them by their progress (Wang et al. 2025, arXiv:2505.20732).

    Args:
        scores: Score of each episode. [N]
        returns: Its return. [N]
    """
    return (scores - returns.to(scores.dtype)).square()


def log_ratio_scores(
    logps: Tensor, old_logps: Tensor, turns: Tensor, num_turns: int, *, beta: float
) -> Tensor:
    """Return implicit scores of turns: log-ratios of a model to the sampling policy.

    ``s_h = beta * sum over the tokens of turn h of (log phi - log pi_old)`` (PRIME, Cui
    et al. 2025, arXiv:2502.01456; per turn: iStar, Liu et al. 2025, arXiv:2509.19199).

    Args:
        logps: Log-probabilities of sampled tokens under the scoring model. [K]
        old_logps: Those under the policy that sampled them. [K]
        turns: Number of each token's turn, in [0, num_turns). int64 [K]
        num_turns: Number of turns M.
        beta: Factor, > 0.

    Returns:
        One score per turn. [M]
    """
    zeros = torch.zeros(num_turns, dtype=logps.dtype, device=logps.device)
    return beta * zeros.index_add(0, turns, logps - old_logps)


def pool_turns(scores: Tensor, owner: Tensor, num_episodes: int, how: str) -> Tensor:
    """Return the sum or the mean of each episode's turns.

    Args:
        scores: Score of each turn. [M]
        owner: Its episode, in [0, num_episodes). int64 [M]
        num_episodes: Number of episodes N; each has a turn.
        how: "sum" or "mean".

    Returns:
        One score per episode. [N]
    """
    zeros = torch.zeros(num_episodes, dtype=scores.dtype, device=scores.device)
    total = zeros.index_add(0, owner, scores)
    check_choice("how", how, ("sum", "mean"))
    if how == "sum":
        return total
    return total / zeros.index_add(0, owner, torch.ones_like(scores))
