"""Losses of preferences, from the sums of episodes' log-probabilities.

A preference loss takes :class:`PairSums` and returns the loss of each pair, to be
minimised [P]; one that requires ``labels`` takes :class:`LabelledSums` and returns the
loss of each episode [N]. Learners differentiate it with respect to the sums alone: the
gradient of a sum is one number per episode, so that a pair need not fit into one
forward pass (``rllib_llm/algorithms/pref/pref_learner.py``).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rllib_llm.components.registry import component
from rllib_llm.losses._checks import check_positive
from rllib_llm.losses.token_batch import requires


@dataclasses.dataclass
class PairSums:
    """Sums over the trained tokens of the chosen and the rejected episode of each pair.

    Attributes:
        chosen_logp: Weighted sum of the policy's log-probabilities, in nats. [P]
        rejected_logp: Likewise. [P]
        chosen_ref: That of the frozen reference; 0 if the loss reads none. [P]
        rejected_ref: Likewise. [P]
        chosen_length: Number of trained tokens, >= 1. [P]
        rejected_length: Likewise. [P]
    """

    chosen_logp: Tensor
    rejected_logp: Tensor
    chosen_ref: Tensor
    rejected_ref: Tensor
    chosen_length: Tensor
    rejected_length: Tensor

    @property
    def chosen_logratio(self) -> Tensor:
        """Log-ratio of policy and reference. [P]"""
        return self.chosen_logp - self.chosen_ref

    @property
    def rejected_logratio(self) -> Tensor:
        """Log-ratio of policy and reference. [P]"""
        return self.rejected_logp - self.rejected_ref

    @property
    def margin(self) -> Tensor:
        """Difference of the two log-ratios, ``d`` in the formulas. [P]"""
        return self.chosen_logratio - self.rejected_logratio

    @property
    def mean_margin(self) -> Tensor:
        """Difference of the log-ratios per token. [P]"""
        return (
            self.chosen_logratio / self.chosen_length
            - self.rejected_logratio / self.rejected_length
        )

    @property
    def chosen_mean_logp(self) -> Tensor:
        """Mean log-probability of a token. [P]"""
        return self.chosen_logp / self.chosen_length

    @property
    def rejected_mean_logp(self) -> Tensor:
        """Mean log-probability of a token. [P]"""
        return self.rejected_logp / self.rejected_length


@dataclasses.dataclass
class LabelledSums:
    """Sums over the trained tokens of single episodes, each desirable or undesirable.

    Attributes:
        logp: Weighted sum of the policy's log-probabilities, in nats. [N]
        ref: That of the frozen reference. [N]
        desirable: Whether the episode is desirable. bool [N]
        kl: Estimate of the KL divergence of policy and reference, >= 0, in nats, of all
            Learners' episodes and without gradient. []
    """

    logp: Tensor
    ref: Tensor
    desirable: Tensor
    kl: Tensor

    @property
    def logratio(self) -> Tensor:
        """Log-ratio of policy and reference. [N]"""
        return self.logp - self.ref


@component(
    "preference_loss", "dpo", paper="Rafailov et al. 2023, arXiv:2305.18290, eq. 7"
)
@requires("reference")
def dpo(pairs: PairSums, *, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    """Return the logistic loss of the margin: ``-log sigmoid(beta * d)``.

    Args:
        pairs: Sums of each pair.
        beta: Strength of the pull to the reference, > 0.
        label_smoothing: Assumed share of wrong labels, in [0, 0.5) (cDPO, Mitchell
            2023): ``-(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d)``.
    """
    check_positive("beta", beta, "Use e.g. 0.1.")
    _check_smoothing(label_smoothing)
    scaled = beta * pairs.margin
    wrong = label_smoothing
    return -(1 - wrong) * logsigmoid(scaled) - wrong * logsigmoid(-scaled)


@component(
    "preference_loss",
    "robust_dpo",
    paper="Chowdhury et al. 2024, arXiv:2403.00409",
)
@requires("reference")
def robust_dpo(
    pairs: PairSums, *, beta: float = 0.1, label_smoothing: float = 0.1
) -> Tensor:
    """Return a DPO loss that is unbiased if a known share of the labels is wrong.

    ``[-(1 - e) log sigmoid(beta d) + e log sigmoid(-beta d)] / (1 - 2 e)``

    Args:
        pairs: Sums of each pair.
        beta: As in ``dpo``.
        label_smoothing: The share of wrong labels, in [0, 0.5).
    """
    check_positive("beta", beta, "Use e.g. 0.1.")
    _check_smoothing(label_smoothing)
    scaled, wrong = beta * pairs.margin, label_smoothing
    loss = -(1 - wrong) * logsigmoid(scaled) + wrong * logsigmoid(-scaled)
    return loss / (1 - 2 * wrong)


@component("preference_loss", "ipo", paper="Azar et al. 2023, arXiv:2310.12036")
@requires("reference")
def ipo(
    pairs: PairSums, *, beta: float = 0.1, length_normalized: bool = True
) -> Tensor:
    """Return the squared distance of the margin to a target: ``(d - 1/(2 beta))**2``.

    Args:
        pairs: Sums of each pair.
        beta: The paper's regularisation tau, > 0.
        length_normalized: Whether ``d`` compares means over tokens, as TRL reads it,
            instead of sums.
    """
    check_positive("beta", beta, "Use e.g. 0.1.")
    margin = pairs.mean_margin if length_normalized else pairs.margin
    return (margin - 1 / (2 * beta)) ** 2


@component("preference_loss", "hinge", paper="SLiC, Zhao et al. 2023, arXiv:2305.10425")
@requires("reference")
def hinge(pairs: PairSums, *, beta: float = 0.1) -> Tensor:
    """Return ``max(0, 1 - beta * d)``.

    Args:
        pairs: Sums of each pair.
        beta: As in ``dpo``.
    """
    check_positive("beta", beta, "Use e.g. 0.1.")
    return torch.relu(1 - beta * pairs.margin)


@component("preference_loss", "exo", paper="Ji et al. 2024, arXiv:2402.00856")
@requires("reference")
def exo(pairs: PairSums, *, beta: float = 0.1, label_smoothing: float = 1e-3) -> Tensor:
    """Return the reverse KL of the pair's policy distribution to its smoothed labels.

    With ``p = (sigmoid(beta d), sigmoid(-beta d))`` and ``q = (1 - e, e)``:
    ``sum_k p_k (log p_k - log q_k)``.

    Args:
        pairs: Sums of each pair.
        beta: As in ``dpo``.
        label_smoothing: ``e``, in (0, 0.5).
    """
    check_positive("beta", beta, "Use e.g. 0.1.")
    check_positive("label_smoothing", label_smoothing, "Use e.g. 0.001.")
    _check_smoothing(label_smoothing)
    scaled = beta * pairs.margin
    labels = pairs.margin.new_tensor([1 - label_smoothing, label_smoothing]).log()
    return scaled.sigmoid() * (logsigmoid(scaled) - labels[0]) + (-scaled).sigmoid() * (
        logsigmoid(-scaled) - labels[1]
    )


@component(
    "preference_loss", "simpo", paper="Meng et al. 2024, arXiv:2405.14734, eq. 6"
)
def simpo(pairs: PairSums, *, beta: float = 2.0, gamma: float = 1.0) -> Tensor:
    """Compare mean log-probabilities, without a reference.

    ``-log sigmoid(beta * (P_chosen - P_rejected) - gamma)``

    Args:
        pairs: Sums of each pair.
        beta: Scale, > 0.
        gamma: Margin that the scaled difference should exceed, >= 0.
    """
    check_positive("beta", beta, "Use e.g. 2.0.")
    if gamma < 0:
        raise ValueError(f"gamma is {gamma}. It must be >= 0, e.g. 1.0.")
    difference = pairs.chosen_mean_logp - pairs.rejected_mean_logp
    return -logsigmoid(beta * difference - gamma)


@component("preference_loss", "orpo", paper="Hong et al. 2024, arXiv:2403.07691, eq. 6")
def orpo(pairs: PairSums, *, beta: float = 0.1) -> Tensor:
    """Imitate the chosen episode and raise its odds over the rejected one's.

    ``-P_chosen - beta log sigmoid(lo(chosen) - lo(rejected))`` with the log-odds
    ``lo = P - log(1 - exp(P))`` of mean log-probabilities; no reference.

    Args:
        pairs: Sums of each pair.
        beta: Weight of the odds ratio (the paper's lambda), > 0.
    """
    check_positive("beta", beta, "Use e.g. 0.1.")
    chosen, rejected = pairs.chosen_mean_logp, pairs.rejected_mean_logp
    return -chosen - beta * logsigmoid(_log_odds(chosen) - _log_odds(rejected))


@component("preference_loss", "kto", paper="Ethayarajh et al. 2024, arXiv:2402.01306")
@requires("reference", "labels")
def kto(
    episodes: LabelledSums,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Compare single episodes with the KL divergence ``z``; no pairs are needed.

    With the log-ratio ``D``: ``a (1 - sigmoid(beta (D - z)))`` if desirable, else
    ``b (1 - sigmoid(beta (z - D)))``.

    Args:
        episodes: Sums and label of each episode.
        beta: Strength of the pull to the reference, > 0.
        desirable_weight: ``a`` (the paper's lambda_D), >= 0.
        undesirable_weight: ``b`` (lambda_U), >= 0. With unequal numbers of both, the
            paper keeps the ratio of weight times number between 1 and 4/3.
    """
    check_positive("beta", beta, "Use e.g. 0.1.")
    weights = (desirable_weight, undesirable_weight)
    if min(weights) < 0 or max(weights) == 0:
        raise ValueError(
            f"desirable_weight is {desirable_weight} and undesirable_weight "
            f"{undesirable_weight}. Both must be >= 0, and one of them > 0, e.g. 1.0."
        )
    gain = beta * (episodes.logratio - episodes.kl)
    # 1 - sigmoid(x) is sigmoid(-x), which loses no digits where x is large.
    return torch.where(
        episodes.desirable,
        desirable_weight * torch.sigmoid(-gain),
        undesirable_weight * torch.sigmoid(gain),
    )


def _log_odds(logp: Tensor) -> Tensor:
    """Return ``log(p / (1 - p))``, exact for p near 1 and near 0."""
    # A mean of 0 would be a certain episode, with infinite odds.
    logp = logp.clamp(max=-1e-6)
    near_one = logp > -0.6931471805599453  # log 2: where each form loses no digits
    log1mexp = torch.where(
        near_one, (-torch.expm1(logp)).log(), torch.log1p(-logp.exp())
    )
    return logp - log1mexp


def _check_smoothing(value: float) -> None:
    if not 0 <= value < 0.5:
        raise ValueError(f"label_smoothing is {value}. It must lie in [0, 0.5).")


def turn_weights(turn_ids: Tensor, num_turns: Tensor, discount: float) -> Tensor:
    """Return DMPO's weight of every token's turn (Shi et al. 2024, 2406.14868).

    ``w_h = g**h (1 - g**(H - h)) / (1 - g**H)`` for turn ``h`` of ``H``; with a
    discount of 1 all weights are 1 (DPO), not the limit ``1 - h/H``.

    Args:
        turn_ids: Turn of each token from 0, -1 for tokens of prompts. [B, T]
        num_turns: Turns of each row's episode, >= 1. [B]
        discount: ``g``, in (0, 1].

    Returns:
        Weights, 0 for tokens of prompts. float32 [B, T]
    """
    sampled = turn_ids >= 0
    if discount == 1:
        return sampled.float()
    turn, total = turn_ids.clamp(min=0).double(), num_turns.double()[:, None]
    weights = discount**turn * (1 - discount ** (total - turn)) / (1 - discount**total)
    return (weights * sampled).float()
