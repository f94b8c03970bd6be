"""Losses of the critic: value by value, and at their edges."""

from __future__ import annotations

import math

import pytest
import torch

from rllib_llm.losses.value_losses import critic_loss


def numbers(seed=0, shape=(3, 5)):
    draw = torch.Generator().manual_seed(seed)
    values, targets, old = (
        torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(3)
    )
    mask = torch.rand(shape, generator=draw) < 0.7
    return values.requires_grad_(), targets, old, mask


def slow(values, targets, old, mask, error, held=None):
    out = torch.zeros_like(targets)
    for place in map(tuple, mask.nonzero().tolist()):
        v, t, o = (
            float(values[place].detach()),
            float(targets[place]),
            float(old[place]),
        )
        out[place] = error(v, t)
        if held is not None:
            out[place] = max(error(v, t), error(o + min(max(v - o, -held), held), t))
    return out


def squared(v, t):
    return (v - t) ** 2


def huber(v, t, delta=0.5):
    gap = abs(v - t)
    return gap**2 if gap <= delta else delta * (2 * gap - delta)


def bce(v, t):
    p = 1 / (1 + math.exp(-v))
    return -(t * math.log(p) + (1 - t) * math.log(1 - p))


@pytest.mark.parametrize("held", [None, 0.3])
@pytest.mark.parametrize("kind, error", [("squared", squared), ("huber", huber)])
def test_distances(kind, error, held):
    values, targets, old, mask = numbers()
    found = critic_loss(
        values,
        targets,
        mask,
        kind=kind,
        huber_delta=0.5,
        clip_range=held,
        old_values=None if held is None else old,
    )
    expected = slow(values, targets, old, mask, error, held)
    torch.testing.assert_close(found.detach(), expected)


def test_cross_entropy_of_a_probability():
    values, targets, old, mask = numbers()
    targets = targets.sigmoid()
    found = critic_loss(values, targets, mask, kind="bce")
    torch.testing.assert_close(found.detach(), slow(values, targets, old, mask, bce))
    (gradient,) = torch.autograd.grad(found.sum(), values)
    expected = (values.detach().sigmoid() - targets) * mask
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("kind", ["squared", "huber", "bce"])
def test_masked_values_have_no_part(kind):
    values, targets, old, mask = numbers()
    targets = targets.sigmoid()
    with torch.no_grad():
        values[~mask] = math.nan
    targets[~mask], old[~mask] = math.inf, math.nan
    loss = critic_loss(values, targets, mask, kind=kind)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and not loss[~mask].any()
    assert not values.grad[~mask].any() and values.grad[mask].all()
    assert not critic_loss(values, targets, mask & False, kind=kind).any()


def test_the_cap_bounds_each_loss_and_its_gradient():
    values, targets, _, mask = numbers()
    values.requires_grad_()
    plain = critic_loss(values, targets, mask)
    capped = critic_loss(values, targets, mask, largest=0.5)
    torch.testing.assert_close(capped, plain.clamp(max=0.5))
    (gradient,) = torch.autograd.grad(capped.sum(), values)
    assert not gradient[plain > 0.5].any() and gradient[mask & (plain < 0.5)].all()
    assert torch.equal(critic_loss(values, targets, mask, largest=torch.inf), plain)


def test_what_is_refused():
    values, targets, old, mask = numbers()
    with pytest.raises(ValueError, match="probability of success"):
        critic_loss(values, 3 * targets.abs() + 1, mask, kind="bce")
    with pytest.raises(ValueError, match="kind is 'mae'"):
        critic_loss(values, targets, mask, kind="mae")
    with pytest.raises(ValueError, match="old_values is None"):
        critic_loss(values, targets, mask, clip_range=0.2)
    with pytest.raises(ValueError, match="clip_range is -1"):
        critic_loss(values, targets, mask, clip_range=-1, old_values=old)
