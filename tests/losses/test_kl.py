"""KL estimators against the exact divergence on a vocabulary of five."""

import pytest
import torch

from rllib_llm.losses.kl import approx_kl, kl_k1, kl_k2, kl_k3, kl_penalty

TOLERANCE = {"atol": 1e-9, "rtol": 0.0}


def make_logits(seed, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        spread * torch.randn(5, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )


def exact_kl(p_logits, q_logits):
    p, q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    return (p.exp() * (p - q)).sum()


@pytest.mark.parametrize("seed", range(10))
def test_k1_and_k3_are_unbiased_and_k2_is_second_order(seed):
    logits, ref_logits = make_logits(seed)
    logp, ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    pi, exact = logp.exp(), exact_kl(logits, ref_logits)
    for estimator in (kl_k1, kl_k3):
        mean = (pi * estimator(logp, ref)).sum()
        torch.testing.assert_close(mean, exact, **TOLERANCE)
    assert (kl_k2(logp, ref) >= 0).all() and (kl_k3(logp, ref) >= 0).all()
    # With r = ref / pi and E[r] = 1: E[k3 - k2] = E[r - 1 - log r - log(r)^2 / 2].
    d = ref - logp
    bias = (pi * (d.exp() - 1 - d - d**2 / 2)).sum()
    got = exact - (pi * kl_k2(logp, ref)).sum()
    torch.testing.assert_close(got, bias, **TOLERANCE)


def test_bias_of_k2_falls_with_the_third_power():
    logits, direction = make_logits(0)
    errors = []
    for step in (0.1, 0.05):
        ref_logits = logits + step * direction
        logp, ref = logits.log_softmax(-1), ref_logits.log_softmax(-1)
        mean = (logp.exp() * kl_k2(logp, ref)).sum()
        errors.append(abs(float(mean - exact_kl(logits, ref_logits))))
    assert errors[0] > 0 and errors[0] / errors[1] == pytest.approx(8.0, rel=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_mean_gradients_are_the_documented_ones(seed):
    logits, ref_logits = make_logits(seed)
    logits.requires_grad_()
    ref = ref_logits.log_softmax(-1)
    pi = logits.detach().softmax(-1)

    def mean_gradient(estimator):
        mean = (pi * estimator(logits.log_softmax(-1), ref)).sum()
        return torch.autograd.grad(mean, logits)[0]

    (reverse,) = torch.autograd.grad(exact_kl(logits, ref_logits), logits)
    (forward,) = torch.autograd.grad(exact_kl(ref_logits, logits), logits)
    torch.testing.assert_close(
        mean_gradient(kl_k1), torch.zeros(5).double(), **TOLERANCE
    )
    torch.testing.assert_close(mean_gradient(kl_k2), reverse, **TOLERANCE)
    torch.testing.assert_close(mean_gradient(kl_k3), forward, **TOLERANCE)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_equal_policies_have_no_divergence(estimator):
    logp = make_logits(0)[0].log_softmax(-1)[None]
    mask = torch.ones_like(logp, dtype=torch.bool)
    assert (kl_penalty(logp, logp, mask, estimator) == 0).all()
    assert approx_kl(logp, logp, mask) == 0


def test_clamp_keeps_k3_finite():
    logp, ref = torch.tensor([-2000.0], requires_grad=True), torch.tensor([-1.0])
    loss = kl_k3(logp, ref)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and logp.grad.item() == 0.0
    assert torch.isinf(kl_k3(logp, ref, clamp=None)).all()
    inside = torch.tensor([-3.0])
    assert torch.equal(kl_k3(inside, ref), kl_k3(inside, ref, clamp=None))


def test_the_largest_k3_of_a_token_is_bounded():
    ref = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
    logp = (ref - torch.tensor([20.0, 2.7, 1.0])).requires_grad_()
    mask = torch.ones(1, 3, dtype=torch.bool)
    free = kl_penalty(logp[None], ref[None], mask, "k3")[0]
    assert free[0] > 4.8e8
    held = kl_penalty(logp[None], ref[None], mask, "k3", largest=10.0)[0]
    assert held.tolist() == [10.0, 10.0, free[2].item()]
    held.sum().backward()
    # d/dlogp (exp(d) - d - 1) = 1 - exp(d), and none where the bound holds it.
    expected = torch.tensor([0.0, 0.0, 1.0 - torch.tensor(1.0).double().exp()])
    torch.testing.assert_close(logp.grad, expected.double(), **TOLERANCE)
    for estimator in ("k1", "k2"):
        plain = kl_penalty(logp[None], ref[None], mask, estimator)
        bounded = kl_penalty(logp[None], ref[None], mask, estimator, largest=10.0)
        assert torch.equal(plain, bounded)


def test_approx_kl_estimates_old_to_new_over_trained_tokens():
    logits, old_logits = make_logits(1)
    logp, old = logits.log_softmax(-1), old_logits.log_softmax(-1)
    # 1000 tokens in the proportions of the old policy stand for its expectation.
    counts = (1000 * old.exp()).round().long()
    logp, old = (x.repeat_interleave(counts)[None] for x in (logp, old))
    mask = torch.ones_like(logp, dtype=torch.bool)
    got = approx_kl(logp.requires_grad_(), old, mask)
    assert not got.requires_grad
    assert float(got) == pytest.approx(float(exact_kl(old_logits, logits)), rel=0.02)


def test_errors_name_the_value():
    logp, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="estimator is 'k4'"):
        kl_penalty(logp, logp, mask, "k4")
    with pytest.raises(ValueError, match=r"ref_logp \[2, 2\]"):
        kl_penalty(logp, logp[:, :2], mask)
    with pytest.raises(ValueError, match=r"logp \[2, 3\], ref_logp \[3\]"):
        kl_k2(logp, logp[0])
    with pytest.raises(ValueError, match="clamp is 0"):
        kl_k3(logp, logp, clamp=0)
    with pytest.raises(ValueError, match="largest is -1"):
        kl_k3(logp, logp, largest=-1)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_masked_entries_of_either_policy_leave_no_trace(estimator):
    mask = torch.tensor([[True, False, False, True]])
    logp = torch.tensor([[-1.0, -2.0, -0.5, -3.0]], requires_grad=True)
    ref = torch.tensor([[-1.5, -0.1, float("nan"), -2.0]])
    found = kl_penalty(logp, ref, mask, estimator)
    assert found[~mask].tolist() == [0.0, 0.0]
    assert torch.equal(
        found[mask], kl_penalty(logp[mask], ref[mask], mask[mask], estimator)
    )
    found.sum().backward()
    assert logp.grad[~mask].tolist() == [0.0, 0.0] and logp.grad[mask].all()
