"""Losses of values of turns: of places before turns, V, and of turns there, Q."""

from __future__ import annotations

import torch
from torch import Tensor

from rllib_llm.losses._checks import (
    check_positive,
    check_same_shape,
    check_unit_interval,
)
from rllib_llm.losses.surrogate import MAX_LOG_RATIO


def td_targets(
    rewards: Tensor, values: Tensor, next_turn: Tensor, *, gamma: float
) -> Tensor:
    """Return one-step targets of turns: ``r + gamma * V(place before the next turn)``.

    Args:
        rewards: Reward of each turn. [M]
        values: Value of the place before each turn. [M]
        next_turn: Index of the turn after each, -1 after an episode's last, whose
            target is its reward. int64 [M]
        gamma: Discount per turn, in [0, 1].
    """
    check_unit_interval(gamma=gamma)
    check_same_shape(rewards=rewards, values=values, next_turn=next_turn)
    after = torch.where(next_turn < 0, torch.zeros_like(values), values[next_turn])
    return rewards + gamma * after


def expectile_loss(values: Tensor, targets: Tensor, *, expectile: float) -> Tensor:
    """Return the asymmetric squared error of values.

    ``|expectile - 1(u < 0)| * u^2`` with ``u = target - value`` (Kostrikov et al. 2022,
    arXiv:2110.06169, eq. 4-5). With 0.5 it is half of the squared error; near 1 the
    value approaches the largest of the targets.

    Args:
        values: Estimates. [M]
        targets: Their targets. [M]
        expectile: In (0, 1).
    """
    if not 0 < expectile < 1:
        raise ValueError(
            f"expectile is {expectile}. It must lie between 0 and 1. Use 0.5 for the "
            "mean, or e.g. 0.8."
        )
    check_same_shape(values=values, targets=targets)
    difference = targets - values
    weight = (expectile - (difference < 0).to(difference.dtype)).abs()
    return weight * difference.square()


def turn_critic_loss(
    q: Tensor,
    v: Tensor,
    target_q: Tensor,
    target_v: Tensor,
    rewards: Tensor,
    next_turn: Tensor,
    *,
    gamma: float,
    expectile: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """Return the losses of Q and V of turns, learned one step at a time off-policy.

    ``(Q_i - r - gamma V'(next))^2``, the mean over the estimates ``i``, and the
    expectile loss of V to the least of ``Q'_i``; targets have no gradient. With
    ``expectile`` 0.5 V is the mean over the logged turns, as in ArCHer (Zhou et al.
    2024, arXiv:2402.19446), which takes turns of the policy; above, it is IQL's.

    Args:
        q: Estimates of Q. [C, M]
        v: V of the place before each turn. [M]
        target_q: Those of the target network. [C, M]
        target_v: As ``q`` and ``v``. [M]
        rewards: Reward of each turn. [M]
        next_turn: See :func:`td_targets`. int64 [M]
        gamma: Discount per turn.
        expectile: In (0, 1).

    Returns:
        Loss of Q and loss of V. 2 x [M]
    """
    targets = td_targets(rewards, target_v.detach(), next_turn, gamma=gamma)
    of_q = (q - targets).square().mean(dim=0)
    least = target_q.detach().min(dim=0).values
    return of_q, expectile_loss(v, least, expectile=expectile)


def vtrace(
    values: Tensor,
    rewards: Tensor,
    log_ratios: Tensor,
    next_turn: Tensor,
    *,
    gamma: float,
    clip_rho_threshold: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return V-trace targets of values and advantages of turns.

    ``v_h = V_h + delta_h + gamma c_h (v_{h+1} - V_{h+1})`` with
    ``delta_h = rho_h (r_h + gamma V_{h+1} - V_h)``, ``rho = min(threshold, w)`` and
    ``c = min(1, w)``; advantages are ``rho_h (r_h + gamma v_{h+1} - V_h)`` (Espeholt et
    al. 2018, arXiv:1802.01561, eq. 1 and sec. 4.2). A turn is a step: its ratio w is
    the product of its tokens'. After the last turn values are 0. Nothing has a
    gradient.

    Args:
        values: V of the place before each turn. [M]
        rewards: Reward of each turn. [M]
        log_ratios: Log-probability of each turn now less that when it was sampled. [M]
        next_turn: See :func:`td_targets`. int64 [M]
        gamma: Discount per turn, in [0, 1].
        clip_rho_threshold: Largest rho, > 0; RLlib's ``vtrace_clip_rho_threshold``.

    Returns:
        Targets and advantages. 2 x [M]
    """
    check_positive("clip_rho_threshold", clip_rho_threshold, "Use e.g. 1.0.")
    check_same_shape(values=values, log_ratios=log_ratios)
    values = values.detach()
    # Before exp, so that an impossible turn gives 0 and none overflows.
    ratios = log_ratios.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    rho, c = ratios.clamp(max=clip_rho_threshold), ratios.clamp(max=1.0)
    delta = rho * (td_targets(rewards, values, next_turn, gamma=gamma) - values)
    corrections, zero = delta, torch.zeros_like(delta)
    is_last = next_turn < 0
    # One round per turn: each lets the corrections reach one turn further back.
    for _ in range(_longest(next_turn) - 1):
        later = torch.where(is_last, zero, corrections[next_turn])
        corrections = delta + gamma * c * later
    targets = values + corrections
    after = td_targets(rewards, targets, next_turn, gamma=gamma)
    return targets, rho * (after - values)


def _longest(next_turn: Tensor) -> int:
    """Return the number of turns of the longest episode."""
    place, rounds = torch.arange(len(next_turn), device=next_turn.device), 0
    while len(place):
        place, rounds = next_turn[place], rounds + 1
        place = place[place >= 0]
    return rounds


def success_advantages(logits: Tensor, rewards: Tensor, next_turn: Tensor) -> Tensor:
    """Return ``r + V(place before the next turn) - V`` of values in [0, 1].

    After the last turn the value is 0.

    Args:
        logits: Logit of success at the place before each turn. [M]
        rewards: Reward of each turn. [M]
        next_turn: See :func:`td_targets`. int64 [M]
    """
    values = logits.sigmoid()
    return td_targets(rewards, values, next_turn, gamma=1.0) - values
