"""Mismatch weights against slow loops in float64, and their bounds."""

import math

import pytest
import torch

from rllib_llm.losses.importance_correction import mismatch_weights

TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}
# Rows 0 and 3 are one sequence, in two rows; sequence 2 has no trained token.
SEQUENCES = torch.tensor([0, 1, 2, 0, 4])


def make_batch(seed=0, rows=5, columns=7, spread=0.6):
    generator = torch.Generator().manual_seed(seed)
    old, noise = (
        torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    mask = torch.rand(rows, columns, generator=generator) < 0.7
    mask[2] = False
    return -old.abs(), -old.abs() + spread * noise, mask


def slow(old, behaviour, mask, *, tis, clip, token_band, sequence_band):
    """Weights, token by token, in Python floats."""
    members = {}
    for r in range(len(old)):
        for t in range(old.shape[1]):
            if mask[r, t]:
                members.setdefault(int(SEQUENCES[r]), []).append((r, t))
    weights = torch.zeros_like(old)
    for tokens in members.values():
        ratios = {x: math.exp(float(old[x]) - float(behaviour[x])) for x in tokens}
        product = math.prod(ratios.values())
        mean = product ** (1 / len(tokens))
        low, high = sequence_band
        if (low and mean < low) or (high and mean > high):
            continue
        for x, ratio in ratios.items():
            if (token_band[0] and ratio < token_band[0]) or (
                token_band[1] and ratio > token_band[1]
            ):
                continue
            weight = {"token": ratio, "sequence": product, None: 1.0}[tis]
            weights[x] = min(weight, clip) if tis else 1.0
    return weights


@pytest.mark.parametrize("tis", [None, "token", "sequence"])
@pytest.mark.parametrize(
    ("token_band", "sequence_band"),
    [
        ((None, None), (None, None)),
        ((0.5, 1.6), (None, None)),
        ((None, 1.2), (None, None)),
        ((None, None), (0.9, 1.15)),
        ((0.4, None), (None, 1.1)),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_equal_a_slow_loop(tis, token_band, sequence_band, seed):
    old, behaviour, mask = make_batch(seed)
    bands = {"token_band": token_band, "sequence_band": sequence_band}
    found = mismatch_weights(
        old, behaviour, mask, SEQUENCES, tis=tis, tis_clip=1.5, **bands
    )
    expected = slow(old, behaviour, mask, tis=tis, clip=1.5, **bands)
    torch.testing.assert_close(found.weights, expected, **TOLERANCE)


def test_clipped_and_dropped_tokens_are_returned():
    old, behaviour, mask = make_batch()
    ratio = (old - behaviour).exp()
    found = mismatch_weights(
        old, behaviour, mask, SEQUENCES, tis="token", token_band=(0.5, 1.6)
    )
    assert torch.equal(found.dropped, mask & ((ratio < 0.5) | (ratio > 1.6)))
    assert found.dropped.any()
    assert torch.equal(found.clipped, mask & (ratio > 2.0))
    assert found.clipped.any()
    torch.testing.assert_close(found.ratio, ratio * mask, **TOLERANCE)


@pytest.mark.parametrize("tis", [None, "token", "sequence"])
def test_no_mismatch_means_weights_of_one(tis):
    old, _, mask = make_batch()
    found = mismatch_weights(
        old, old, mask, SEQUENCES, tis=tis, token_band=(0.99, 1.01)
    )
    assert torch.equal(found.weights, mask.double())


def test_masked_entries_do_not_matter_and_no_gradient_flows():
    old, behaviour, mask = make_batch()
    clean = mismatch_weights(old, behaviour, mask, SEQUENCES, tis="sequence").weights
    for garbage in (math.nan, math.inf, -math.inf, 1e30):
        dirty = old.masked_fill(~mask, garbage).requires_grad_()
        found = mismatch_weights(dirty, behaviour, mask, SEQUENCES, tis="sequence")
        assert torch.equal(found.weights, clean)
        assert not found.weights.requires_grad


def test_extreme_ratios_stay_at_the_clip():
    old, _, mask = make_batch()
    for tis in ("token", "sequence"):
        far = mismatch_weights(old + 1e4, old, mask, SEQUENCES, tis=tis)
        torch.testing.assert_close(far.weights, 2.0 * mask.double(), **TOLERANCE)


def test_expectations_under_the_behaviour_become_those_of_the_policy():
    """Untruncated token weights are importance sampling: unbiased."""
    behaviour, policy = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    value = torch.tensor([1.0, -2.0, 5.0])
    taken = torch.arange(3)[:, None]
    found = mismatch_weights(
        policy.log()[taken],
        behaviour.log()[taken],
        torch.ones(3, 1, dtype=torch.bool),
        torch.arange(3),
        tis="token",
        tis_clip=100.0,
    )
    corrected = (behaviour * found.weights[:, 0] * value).sum()
    torch.testing.assert_close(corrected, (policy * value).sum())


def test_errors_name_the_value():
    old, behaviour, mask = make_batch()
    with pytest.raises(ValueError, match="tis_clip is 0"):
        mismatch_weights(old, behaviour, mask, SEQUENCES, tis_clip=0)
    with pytest.raises(ValueError, match="tis is 'tokens'.*Did you mean 'token'"):
        mismatch_weights(old, behaviour, mask, SEQUENCES, tis="tokens")
    with pytest.raises(ValueError, match=r"behaviour_logp \[5, 6\]"):
        mismatch_weights(old, behaviour[:, :6], mask, SEQUENCES)
