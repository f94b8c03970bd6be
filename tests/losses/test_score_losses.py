"""Losses of scores against loops and TRL's documented form."""

from __future__ import annotations

import math

import pytest
import torch

from rllib_llm.losses.score_losses import outcome_loss, pairwise_loss


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
