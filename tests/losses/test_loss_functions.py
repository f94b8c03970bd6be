"""Losses against slow loops written from the papers, masking, and RLlib's formula."""

import math

import numpy as np
import pytest
import torch

from rllib_llm.losses.aggregation import (
    LOSS_AGGREGATIONS,
    denominator,
    token_weights,
    weighted_loss,
)
from rllib_llm.losses.kl import approx_kl, kl_penalty
from rllib_llm.losses.logprobs import token_logps_and_entropy
from rllib_llm.losses.surrogate import (
    clipped_policy_loss,
    entropy_bonus,
    negative_log_likelihood,
)
from rllib_llm.losses.value_losses import critic_loss

TOLERANCE = {"atol": 1e-9, "rtol": 0.0}
GARBAGE = [math.nan, math.inf, -math.inf, 1e30]


def make_batch(seed, rows=5, columns=7):
    """Random inputs with unequal lengths; the last row is wholly masked."""
    generator = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64)

    batch = {
        "logp": -normal().abs(),
        "old_logp": -normal().abs(),
        "advantages": normal(),
        "values": normal(),
        "targets": normal(),
        "old_values": normal(),
        "entropy": normal().abs(),
    }
    batch["loss_mask"] = torch.rand(rows, columns, generator=generator) < 0.6
    batch["loss_mask"][-1] = False
    return batch


def all_losses(batch):
    """Every per-token loss of the package, by name."""
    b = batch
    pair = (b["logp"], b["old_logp"])
    mask = b["loss_mask"]
    value = (b["values"], b["targets"], mask)
    policy = (*pair, b["advantages"], mask)
    return {
        "policy": clipped_policy_loss(*policy, clip_high=0.28)[0],
        "dual": clipped_policy_loss(*policy, dual_clip=3.0)[0],
        "nll": negative_log_likelihood(b["logp"], mask, b["advantages"]),
        "value": critic_loss(*value),
        "value_cap": critic_loss(*value, largest=0.5),
        "value_clip": critic_loss(*value, clip_range=0.2, old_values=b["old_values"]),
        "entropy": entropy_bonus(b["entropy"], mask),
        "k1": kl_penalty(*pair, mask, "k1"),
        "k2": kl_penalty(*pair, mask, "k2"),
        "k3": kl_penalty(*pair, mask, "k3"),
    }


def slow_policy_loss(logp, old_logp, advantage, low, high, dual_clip):
    ratio = math.exp(logp - old_logp)
    clipped = min(max(ratio, 1 - low), 1 + high)
    objective = min(ratio * advantage, clipped * advantage)
    if dual_clip is not None and advantage < 0:
        objective = max(objective, dual_clip * advantage)
    return -objective


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("low", "high", "dual"), [(0.2, 0.2, None), (0.2, 0.28, None), (0.3, 0.4, 3.0)]
)
def test_policy_loss_equals_the_loop(seed, low, high, dual):
    b = make_batch(seed)
    loss, clipped = clipped_policy_loss(
        b["logp"].requires_grad_(),
        b["old_logp"],
        b["advantages"],
        b["loss_mask"],
        clip_low=low,
        clip_high=high,
        dual_clip=dual,
    )
    expected = torch.zeros_like(loss)
    for i, j in b["loss_mask"].nonzero().tolist():
        expected[i, j] = slow_policy_loss(
            *(b[name][i, j].item() for name in ("logp", "old_logp", "advantages")),
            low,
            high,
            dual,
        )
    torch.testing.assert_close(loss.detach(), expected.detach(), **TOLERANCE)
    # A clip that acts is one that leaves a trained token without gradient.
    (gradient,) = torch.autograd.grad(loss.sum(), b["logp"])
    assert torch.equal(clipped, (gradient == 0) & b["loss_mask"])


def test_first_step_gives_minus_the_mean_advantage_and_its_policy_gradient():
    b = make_batch(0)
    mask, logp = b["loss_mask"], b["logp"].requires_grad_()
    loss, clipped = clipped_policy_loss(logp, logp.detach(), b["advantages"], mask)
    ids = np.arange(len(mask))
    total = weighted_loss(
        loss,
        torch.from_numpy(token_weights(mask, ids, "token-mean")),
        denominator(mask, ids, "token-mean"),
    )
    total.backward()
    torch.testing.assert_close(total, -b["advantages"][mask].mean(), **TOLERANCE)
    expected = torch.where(mask, -b["advantages"] / mask.sum(), 0.0)
    torch.testing.assert_close(logp.grad, expected, **TOLERANCE)
    assert not clipped.any()


def test_dual_clip_only_touches_negative_advantages_of_large_ratios():
    b = make_batch(3)
    arguments = (b["logp"], b["old_logp"], b["advantages"], b["loss_mask"])
    plain, _ = clipped_policy_loss(*arguments)
    dual, _ = clipped_policy_loss(*arguments, dual_clip=1.5)
    ratio = (b["logp"] - b["old_logp"]).exp()
    bounded = b["loss_mask"] & (b["advantages"] < 0) & (ratio > 1.5)
    assert bounded.any() and not bounded.all()
    assert torch.equal(plain != dual, bounded)
    torch.testing.assert_close(
        dual[bounded], -1.5 * b["advantages"][bounded], **TOLERANCE
    )


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gap", [-1e4, 1e4])
def test_extreme_ratios_stay_finite(advantage, gap):
    logp = torch.tensor([[gap]], requires_grad=True)
    loss, _ = clipped_policy_loss(
        logp,
        torch.zeros(1, 1),
        torch.full((1, 1), advantage),
        torch.ones(1, 1, dtype=torch.bool),
    )
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(logp.grad).all()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_garbage_changes_neither_losses_nor_gradients(garbage):
    clean, dirty = make_batch(1), make_batch(1)
    mask = clean["loss_mask"]
    for name in set(dirty) - {"loss_mask"}:
        dirty[name][~mask] = garbage
    leaves = ("logp", "values", "entropy")
    for batch in (clean, dirty):
        for name in leaves:
            batch[name].requires_grad_()
    expected, got = all_losses(clean), all_losses(dirty)
    for name, loss in got.items():
        assert torch.equal(loss, expected[name]), name
        assert (loss[~mask] == 0).all(), name
    for batch, losses in ((clean, expected), (dirty, got)):
        sum(loss.sum() for loss in losses.values()).backward()
        assert all((batch[name].grad[~mask] == 0).all() for name in leaves)
    for name in leaves:
        assert torch.equal(dirty[name].grad, clean[name].grad), name
    for batch in (clean, dirty):
        kl = approx_kl(batch["logp"], batch["old_logp"], mask)
        assert torch.isfinite(kl)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_logits_change_neither_loss_nor_gradient(garbage):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 6, 11, generator=generator, dtype=torch.float64)
    ids = torch.randint(11, (3, 6), generator=generator)
    mask = torch.rand(3, 6, generator=generator) < 0.5

    def loss_and_gradient(logits, ids):
        logits = logits.clone().requires_grad_()
        logp, entropy = token_logps_and_entropy(logits, ids, loss_mask=mask, chunk=4)
        loss, _ = clipped_policy_loss(logp, logp.detach() - 0.1, torch.ones(3, 6), mask)
        total = (loss + 0.01 * entropy_bonus(entropy, mask)).sum()
        total.backward()
        return total.detach(), logits.grad

    expected = loss_and_gradient(logits, ids)
    logits[~mask], ids[~mask] = garbage, -100
    got = loss_and_gradient(logits, ids)
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    assert (got[1][~mask] == 0).all() and (got[1][mask] != 0).any()


def total_loss(batch, mode, ids):
    """Sum of all losses under the global normaliser, with the gradients' owner."""
    mask = batch["loss_mask"]
    constant = 16.0 if mode == "seq-mean-token-sum-norm" else None
    weights = token_weights(mask, ids, mode, constant=constant)
    total = sum(all_losses(batch).values())
    return weighted_loss(
        total,
        torch.from_numpy(weights),
        denominator(mask, ids, mode),
    )


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS)
def test_padding_and_row_order_change_nothing(mode):
    batch, ids = make_batch(2), np.array([4, 4, 1, 2, 3])
    expected = total_loss(batch, mode, ids)
    for left, right in ((3, 0), (0, 3), (1, 2)):
        padded = {
            name: torch.nn.functional.pad(value, (left, right))
            for name, value in batch.items()
        }
        torch.testing.assert_close(total_loss(padded, mode, ids), expected, **TOLERANCE)
    order = np.random.default_rng(0).permutation(5)
    permuted = {name: value[order] for name, value in batch.items()}
    got = total_loss(permuted, mode, ids[order])
    torch.testing.assert_close(got, expected, **TOLERANCE)


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS)
def test_all_masked_batch_is_finite(mode):
    batch = make_batch(0)
    batch["loss_mask"][:] = False
    leaf = batch["logp"].requires_grad_()
    total = total_loss(batch, mode, np.arange(5))
    total.backward()
    assert total == 0.0 and (leaf.grad == 0).all()
    policy = (batch["logp"], batch["old_logp"], batch["advantages"])
    assert not clipped_policy_loss(*policy, batch["loss_mask"])[1].any()
    assert approx_kl(batch["logp"], batch["old_logp"], batch["loss_mask"]) == 0.0


def test_equals_rllib_ppo_formula():
    """RLlib's PPO loss, re-written: boolean indexing and means over valid entries."""
    b = make_batch(4)
    logp, values = b["logp"].requires_grad_(), b["values"].requires_grad_()
    clip_param, vf_clip, vf_coeff, entropy_coeff = 0.3, 0.8, 0.5, 0.01
    mask, ids = b["loss_mask"], np.arange(5)

    a, r = b["advantages"][mask], (logp[mask] - b["old_logp"][mask]).exp()
    surrogate = torch.stack([a * r, a * r.clamp(1 - clip_param, 1 + clip_param)])
    error = torch.pow(values[mask] - b["targets"][mask], 2.0).clamp(0, vf_clip)
    bonus = entropy_coeff * b["entropy"][mask]
    reference = (-surrogate.amin(0) + vf_coeff * error - bonus).mean()

    policy, _ = clipped_policy_loss(
        logp,
        b["old_logp"],
        b["advantages"],
        mask,
        clip_low=clip_param,
        clip_high=clip_param,
    )
    critic = critic_loss(values, b["targets"], mask, largest=vf_clip)
    per_token = (
        policy + vf_coeff * critic + entropy_coeff * entropy_bonus(b["entropy"], mask)
    )
    got = weighted_loss(
        per_token,
        torch.from_numpy(token_weights(mask, ids, "token-mean")),
        denominator(mask, ids, "token-mean"),
    )
    torch.testing.assert_close(got, reference, **TOLERANCE)
    for ours, theirs in zip(
        torch.autograd.grad(got, (logp, values)),
        torch.autograd.grad(reference, (logp, values)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_value_loss_equals_the_loop():
    b = make_batch(5)
    arguments = (b["values"], b["targets"], b["loss_mask"])
    plain = critic_loss(*arguments)
    capped = critic_loss(*arguments, largest=0.5)
    clipped = critic_loss(*arguments, clip_range=0.2, old_values=b["old_values"])
    for i, j in b["loss_mask"].nonzero().tolist():
        v, t, old = (float(b[k][i, j]) for k in ("values", "targets", "old_values"))
        held = old + min(max(v - old, -0.2), 0.2)
        assert plain[i, j].item() == pytest.approx((v - t) ** 2, abs=1e-9)
        assert capped[i, j].item() == pytest.approx(min((v - t) ** 2, 0.5), abs=1e-9)
        larger = max((v - t) ** 2, (held - t) ** 2)
        assert clipped[i, j].item() == pytest.approx(larger, abs=1e-9)


def test_nll_and_entropy_values():
    b = make_batch(6)
    mask = b["loss_mask"]
    plain = negative_log_likelihood(b["logp"], mask)
    torch.testing.assert_close(plain[mask], -b["logp"][mask], **TOLERANCE)
    ones = negative_log_likelihood(b["logp"], mask, torch.ones_like(b["logp"]))
    assert torch.equal(plain, ones)
    bonus = entropy_bonus(b["entropy"], mask)
    torch.testing.assert_close(bonus[mask], -b["entropy"][mask], **TOLERANCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 0.0}, "clip_low is 0.0"),
        ({"clip_low": 1.5}, "clip_low is 1.5"),
        ({"clip_high": -0.1}, "clip_high is -0.1"),
        ({"dual_clip": 1.0}, "dual_clip is 1.0"),
    ],
)
def test_policy_loss_errors_name_the_value(options, message):
    b = make_batch(0)
    arguments = (b["logp"], b["old_logp"], b["advantages"], b["loss_mask"])
    with pytest.raises(ValueError, match=message):
        clipped_policy_loss(*arguments, **options)


def test_other_errors_name_the_value():
    b = make_batch(0)
    logp, mask = b["logp"], b["loss_mask"]
    with pytest.raises(ValueError, match=r"loss_mask \[5, 7\].*advantages \[5, 1\]"):
        clipped_policy_loss(logp, logp, b["advantages"][:, :1], mask)
    with pytest.raises(ValueError, match=r"loss_mask has dtype torch.float32"):
        negative_log_likelihood(logp, mask.float())
    with pytest.raises(ValueError, match="clip_range is None"):
        critic_loss(logp, logp, mask, old_values=logp)
    with pytest.raises(ValueError, match="largest is 0"):
        critic_loss(logp, logp, mask, largest=0)
    with pytest.raises(ValueError, match="denominator is -1"):
        weighted_loss(logp, logp, -1.0)
    with pytest.raises(ValueError, match=r"loss is \[5, 7\] but weights is \[4, 7\]"):
        weighted_loss(logp, logp[:4], 1.0)


def test_the_policy_before_the_update_gets_no_gradient():
    """Computed in the same graph, it must still be a constant."""
    batch = make_batch(0)
    logp = batch["logp"].requires_grad_()
    mask = torch.ones_like(logp, dtype=torch.bool)
    loss, _ = clipped_policy_loss(logp, logp * 1.0, batch["advantages"], mask)
    (found,) = torch.autograd.grad(loss.sum(), logp)
    # At ratio 1 the gradient is -A; through both policies it would be 0.
    torch.testing.assert_close(found, -batch["advantages"], **TOLERANCE)
