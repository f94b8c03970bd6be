"""Losses of scores against loops and TRL's documented form."""

from __future__ import annotations

import math

import pytest
import torch

from rllib_llm.losses.score_losses import (
    log_ratio_scores,
    outcome_loss,
    pairwise_loss,
    pool_turns,
    return_loss,
)


def scores(seed, count=7):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("margin, centering", [(0.0, 0.0), (0.5, 0.0), (0.0, 1e-3)])
def test_pairs_against_a_loop(margin, centering):
    chosen, rejected = scores(0), scores(1)
    found = pairwise_loss(chosen, rejected, margin=margin, centering=centering)
    for i, value in enumerate(found.tolist()):
        c, r = float(chosen[i]), float(rejected[i])
        expected = math.log1p(math.exp(-(c - r - margin))) + centering * (c**2 + r**2)
        assert value == pytest.approx(expected, rel=1e-12)


def test_a_shift_of_both_scores_changes_nothing_without_centering():
    chosen, rejected = scores(0), scores(1)
    torch.testing.assert_close(
        pairwise_loss(chosen + 5, rejected + 5), pairwise_loss(chosen, rejected)
    )
    centred = pairwise_loss(chosen + 5, rejected + 5, centering=0.1)
    assert (centred > pairwise_loss(chosen, rejected)).all()


def test_exchanged_sides_mirror_the_gradient():
    chosen, rejected = (scores(i).requires_grad_() for i in range(2))
    pairwise_loss(chosen, rejected).sum().backward()
    torch.testing.assert_close(chosen.grad, -rejected.grad)
    assert (chosen.grad < 0).all()


def test_equal_scores_have_the_loss_log_2():
    one = scores(0)
    assert pairwise_loss(one, one).tolist() == pytest.approx([math.log(2)] * 7)


def test_outcomes_against_a_loop():
    given = scores(2)
    success = torch.tensor([1, 0, 1, 1, 0, 0, 1], dtype=torch.float64)
    for s, y, value in zip(given, success, outcome_loss(given, success), strict=True):
        p = 1 / (1 + math.exp(-float(s)))
        expected = -math.log(p if y else 1 - p)
        assert float(value) == pytest.approx(expected, rel=1e-12)


# Scores of turns ----------------------------------------------------------------------

OWNER = torch.tensor([0, 0, 2, 1, 2, 2, 1])


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_pools_against_a_loop(how):
    given = scores(3)
    found = pool_turns(given, OWNER, 3, how)
    for episode in range(3):
        own = [v for v, o in zip(given.tolist(), OWNER, strict=True) if o == episode]
        expected = sum(own) / (len(own) if how == "mean" else 1)
        assert float(found[episode]) == pytest.approx(expected, rel=1e-12)


def test_log_ratios_against_a_loop():
    logps, old = -scores(4).abs(), -scores(5).abs()
    found = log_ratio_scores(logps, old, OWNER, 4, beta=0.05)
    for turn in range(4):
        own = [
            float(n - o) for n, o, t in zip(logps, old, OWNER, strict=True) if t == turn
        ]
        assert float(found[turn]) == pytest.approx(0.05 * sum(own), abs=1e-12)


def test_a_model_that_is_the_policy_scores_nothing():
    logps = -scores(4).abs()
    assert not log_ratio_scores(logps, logps, OWNER, 3, beta=0.05).any()


def test_progress_divides_the_return():
    """With the sum of turns all of them get the same derivative: that of the sum."""
    given = scores(3).requires_grad_()
    returns = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
    loss = return_loss(pool_turns(given, OWNER, 3, "sum"), returns)
    loss.sum().backward()
    for episode in range(3):
        own = given.detach()[episode == OWNER].tolist()
        difference = sum(own) - float(returns[episode])
        assert float(loss[episode].detach()) == pytest.approx(difference**2)
        derivatives = given.grad[episode == OWNER].tolist()
        assert derivatives == pytest.approx([2 * difference] * len(own))
