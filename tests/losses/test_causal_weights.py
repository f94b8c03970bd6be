"""Weights of tokens by their effect on the parsed action, against a loop."""

from __future__ import annotations

import math

import pytest
import torch

from rllib_llm.losses.causal_weights import causal_weights, spans
from rllib_llm.losses.composed_loss import ComposedLoss
from rllib_llm.losses.token_batch import example_batch

LENGTHS, LONGEST = [5, 3, 1], 5


def draws():
    generator = torch.Generator().manual_seed(0)
    probs, masked, counted = (
        torch.rand(3, size, generator=generator, dtype=torch.float64)
        for size in (1, LONGEST, LONGEST)
    )
    is_token = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    return probs[:, 0], masked, is_token, counted > 0.3


def loop(probs, masked, is_token, counts):
    """Return the weights of each reply's tokens, one by one."""
    out = []
    for row, length in enumerate(is_token.sum(dim=1).tolist()):
        effects = [
            abs(float(probs[row]) - float(masked[row, i])) if counts[row, i] else 0.0
            for i in range(length)
        ]
        low, high = min(effects), max(effects)
        weights = [
            math.sqrt((e - low) / (high - low)) if high > low else 0.0 for e in effects
        ]
        out.append(weights + [0.0] * (is_token.shape[1] - length))
    return out


def test_weights_against_a_loop():
    given = draws()
    found = causal_weights(*given)
    expected = torch.tensor(loop(*given), dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    # One token alone differs from nothing; others reach both ends of the scale.
    assert found[2].tolist() == [0.0] * LONGEST
    assert found[0].max() == 1.0 and found[0][given[2][0]].min() == 0.0


def test_equal_effects_and_uncounted_tokens_have_no_weight():
    probs, masked, is_token, _ = draws()
    same = torch.full_like(masked, 0.25)
    none = torch.zeros_like(is_token)
    assert not causal_weights(probs, same, is_token, ~none)[:, 0].any()
    assert not causal_weights(probs, masked, is_token, none).any()


def test_spans_begin_at_each_token():
    assert spans(4, 2).int().tolist() == [
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
        [0, 0, 0, 1],
    ]
    assert spans(3, 1).equal(torch.eye(3).bool())


def test_the_bonus_of_a_token_is_its_entropy_times_its_weight():
    composed = ComposedLoss(loss_terms=[{"name": "entropy", "weights": "causal"}])
    assert composed.needs == {"causal"}
    batch = example_batch(composed.needs, is_part=True)
    leaf = batch.entropy
    ((_, loss),) = composed.term_losses(batch)
    (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    expected = -batch.causal_weights.masked_fill(~batch.mask, 0.0)
    torch.testing.assert_close(gradient, expected)
    assert expected.abs().max() > 0.5


def test_the_highest_entropies_may_be_weighed_too():
    both = {"name": "entropy", "weights": "causal", "top": 0.5}
    composed = ComposedLoss(loss_terms=[both])
    assert composed.needs == {"causal", "scores"}
    batch = example_batch(composed.needs, is_part=True)
    ((_, loss),) = composed.term_losses(batch)
    rank = batch.entropy_rank.masked_fill(~batch.mask, 1.0)
    expected = -batch.entropy * batch.causal_weights * (rank < 0.5)
    torch.testing.assert_close(loss, expected.to(loss.dtype))


def test_other_weights_are_refused():
    with pytest.raises(ValueError, match="weights is 'much'"):
        ComposedLoss(loss_terms=[{"name": "entropy", "weights": "much"}]).try_out()
