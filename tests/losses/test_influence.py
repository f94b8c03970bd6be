"""Influence of pairs by one finite step, against gradients of every pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rllib_llm.losses.influence import influences, moved, pair_scores, unit_steps

F64 = torch.float64
BETA, STATES, ACTIONS, PAIRS = 0.3, 6, 4, 9


def softmax_policy(seed=0):
    """Weights of a linear softmax policy, features of states, and pairs."""
    rng = np.random.default_rng(seed)
    weights = torch.tensor(rng.normal(size=(3, ACTIONS)), dtype=F64, requires_grad=True)
    offset = torch.tensor(rng.normal(size=ACTIONS), dtype=F64, requires_grad=True)
    features = torch.tensor(rng.normal(size=(STATES, 3)), dtype=F64)
    rewards = torch.tensor(rng.normal(size=(STATES, ACTIONS)), dtype=F64)
    pairs = [
        (int(rng.integers(STATES)), *rng.permutation(ACTIONS)[:2].tolist())
        for _ in range(PAIRS)
    ]
    margins = torch.tensor(rng.normal(size=PAIRS), dtype=F64)  # of the reference
    return [weights, offset], features, rewards, pairs, margins


def logps(parameters, features):
    return (features @ parameters[0] + parameters[1]).log_softmax(1)


def losses(parameters, features, pairs, margins):
    """DPO, one pair at a time."""
    logp = logps(parameters, features)
    each = []
    for (state, chosen, rejected), ref in zip(pairs, margins, strict=True):
        d = logp[state, chosen] - logp[state, rejected] - ref
        each.append(-torch.log(1 / (1 + torch.exp(-BETA * d))))
    return torch.stack(each)


def expected_return(parameters, features, rewards):
    return (logps(parameters, features).exp() * rewards).sum(1).mean()


def return_of(*setup):
    return float(expected_return(*setup).detach())


def slow_influences(parameters, features, rewards, pairs, margins):
    """-grad J . grad L(z) / |grad J| of each pair, from its own gradient."""
    of_return = torch.autograd.grad(
        expected_return(parameters, features, rewards), parameters
    )
    norm = math.sqrt(sum(float(x) ** 2 for g in of_return for x in g.flatten()))
    found = []
    for i in range(len(pairs)):
        loss = losses(parameters, features, pairs, margins)[i]
        of_loss = torch.autograd.grad(loss, parameters)
        dot = 0.0
        for one, other in zip(of_return, of_loss, strict=True):
            for x, y in zip(one.flatten(), other.flatten(), strict=True):
                dot += float(x) * float(y)
        found.append(-dot / norm)
    return np.array(found)


def estimate(step_size, parameters, features, rewards, pairs, margins):
    of_return = torch.autograd.grad(
        expected_return(parameters, features, rewards), parameters
    )
    before = losses(parameters, features, pairs, margins).detach()
    with moved(parameters, unit_steps(of_return, step_size)):
        after = losses(parameters, features, pairs, margins).detach()
    return influences(before, after, step_size).numpy()


@pytest.mark.parametrize("seed", range(3))
def test_the_estimate_converges_to_the_product_of_gradients(seed):
    setup = softmax_policy(seed)
    exact = slow_influences(*setup)
    assert (exact > 0.001).any() and (exact < -0.001).any()
    errors = [np.abs(estimate(size, *setup) - exact).max() for size in (0.1, 0.01)]
    assert errors[1] < 0.2 * errors[0]  # of first order
    np.testing.assert_allclose(estimate(1e-6, *setup), exact, atol=1e-6)


def test_a_step_on_a_pair_changes_the_return_as_its_influence_says():
    parameters, features, rewards, pairs, margins = setup = softmax_policy()
    norm = torch.cat(
        [
            g.flatten()
            for g in torch.autograd.grad(
                expected_return(parameters, features, rewards), parameters
            )
        ]
    ).norm()
    at_first = return_of(parameters, features, rewards)
    for i, predicted in enumerate(estimate(1e-6, *setup)):
        loss = losses(parameters, features, pairs, margins)[i]
        gradients = torch.autograd.grad(loss, parameters)
        with moved(parameters, [-1e-6 * g for g in gradients]):
            gain = return_of(parameters, features, rewards) - at_first
        assert gain / 1e-6 == pytest.approx(predicted * float(norm), abs=1e-5)


def test_parameters_are_restored_bit_by_bit_also_after_an_error():
    rng = torch.Generator().manual_seed(0)
    parameters = [torch.randn(50, generator=rng) * 1e-3 for _ in range(2)]
    before = [p.clone() for p in parameters]
    steps = [torch.randn(50, generator=rng) * 10, None]
    with pytest.raises(RuntimeError), moved(parameters, steps):
        assert not torch.equal(parameters[0], before[0])
        assert torch.equal(parameters[1], before[1])
        raise RuntimeError
    assert all(map(torch.equal, parameters, before))
    # Not so by subtraction: the test would find it.
    assert not torch.equal(before[0] + steps[0] - steps[0], before[0])


def test_a_step_has_its_length_over_all_parameters():
    gradients = [torch.tensor([3.0, 0.0]), None, torch.tensor([[4.0]])]
    steps = unit_steps(gradients, 0.5)
    assert steps[1] is None
    torch.testing.assert_close(steps[0], torch.tensor([0.3, 0.0]))
    torch.testing.assert_close(steps[2], torch.tensor([[0.4]]))
    (nothing,) = unit_steps([torch.zeros(3)], 0.5)
    assert torch.equal(nothing, torch.zeros(3))
    with pytest.raises(ValueError, match="norm nan"):
        unit_steps([torch.tensor([float("nan")])], 0.5)
    with pytest.raises(ValueError, match="step_size"):
        unit_steps(gradients, 0.0)


def test_scores_are_gap_and_standardised_influence():
    gaps, found = np.array([0.4, 0.1, 0.2]), np.array([-3.0, 0.0, 4.0])
    scale = math.sqrt((9 + 16) / 3)
    expected = [0.4 - 0.5 * 3 / scale, 0.1, 0.2 + 0.5 * 4 / scale]
    np.testing.assert_allclose(pair_scores(gaps, found, 0.5), expected, rtol=1e-12)
    # Neither the length of the gradient nor of the step counts; the sign does.
    np.testing.assert_allclose(pair_scores(gaps, 7 * found, 0.5), expected, rtol=1e-12)
    all_good = pair_scores(gaps, np.array([1.0, 2.0, 3.0]), 0.5)
    assert (all_good > gaps).all()
    assert pair_scores(gaps, np.zeros(3), 0.5).tolist() == gaps.tolist()
    assert pair_scores(np.zeros(0), np.zeros(0), 0.5).tolist() == []
