"""The exact divergence from a teacher, against loops over actions in plain floats."""

from __future__ import annotations

import math

import pytest
import torch

from rllib_llm.losses.action_distillation import (
    DIRECTIONS,
    ActionProbs,
    action_divergence,
)


def distributions(turns=6, most=4, seed=0):
    """Log-probabilities of up to ``most`` actions in each turn, padded with -inf."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(turns, most, generator=draw, dtype=torch.float64)
    sizes = torch.randint(1, most + 1, (turns, 1), generator=draw)
    sizes[0], sizes[1] = 1, most
    scores = scores.masked_fill(torch.arange(most) >= sizes, -torch.inf)
    return scores.log_softmax(-1)


def policy_and_teacher():
    """Two distributions over the same actions of each turn."""
    policy, draw = distributions(), torch.Generator().manual_seed(1)
    scores = torch.randn(policy.shape, generator=draw, dtype=torch.float64)
    return policy, scores.masked_fill(policy == -torch.inf, -torch.inf).log_softmax(-1)


def slow(policy, teacher, direction):
    """The definition of the Kullback-Leibler divergence, turn by turn."""
    found = []
    for of_policy, of_teacher in zip(policy.tolist(), teacher.tolist(), strict=True):
        total = 0.0
        for logp, logt in zip(of_policy, of_teacher, strict=True):
            of, other = (logt, logp) if direction == "forward" else (logp, logt)
            if of > -math.inf:
                total += math.exp(of) * (of - other)
        found.append(total)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_it_is_the_sum_over_all_actions(direction):
    policy, teacher = policy_and_teacher()
    found = action_divergence(policy, teacher, direction)
    torch.testing.assert_close(found, slow(policy, teacher, direction))
    sizes = (policy > -torch.inf).sum(-1)
    assert found[sizes == 1].eq(0).all() and found[sizes > 1].gt(0).all()
    assert {1, policy.shape[1]} < set(sizes.tolist())
    assert not action_divergence(policy, policy, direction).any()


def test_directions_differ():
    policy, teacher = policy_and_teacher()
    forward, reverse = (action_divergence(policy, teacher, d) for d in DIRECTIONS)
    assert not torch.allclose(forward, reverse)
    torch.testing.assert_close(action_divergence(teacher, policy, "reverse"), forward)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gradients_are_those_of_finite_differences(direction):
    """Of scores, whose softmax the policy is; the teacher gets none."""
    policy, teacher = policy_and_teacher()
    exists = policy > -torch.inf
    scores = torch.randn_like(policy).requires_grad_()
    teacher = teacher.clone().requires_grad_()

    def loss(given):
        logps = given.masked_fill(~exists, -torch.inf).log_softmax(-1)
        return action_divergence(logps, teacher, direction).sum()

    loss(scores).backward()
    assert teacher.grad is None
    found = scores.grad
    for place in exists.nonzero().tolist():
        step = torch.zeros_like(scores)
        step[tuple(place)] = 1e-6
        with torch.no_grad():
            expected = (loss(scores + step) - loss(scores - step)) / 2e-6
        assert float(found[tuple(place)]) == pytest.approx(float(expected), abs=1e-7)
    assert found[exists].any() and not found[~exists].any()


def test_forward_has_the_gradient_of_the_cross_entropy():
    """softmax - p_T, also where the teacher takes one action alone."""
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.full((3, 4), -torch.inf, dtype=torch.float64)
    teacher[torch.arange(3), torch.tensor([2, 0, 3])] = 0.0
    found = action_divergence(scores.log_softmax(-1), teacher)
    torch.testing.assert_close(
        found, -scores.log_softmax(-1)[torch.arange(3), torch.tensor([2, 0, 3])]
    )
    found.sum().backward()
    torch.testing.assert_close(scores.grad, scores.softmax(-1) - teacher.exp())


def test_numbers_of_turns_stand_at_their_tokens():
    rows, cols = torch.tensor([0, 2]), torch.tensor([1, 0])
    actions = ActionProbs(distributions(2), rows, cols)
    found = actions.at_tokens(torch.tensor([3.0, -1.0]), torch.zeros(3, 2))
    assert found.tolist() == [[0.0, 3.0], [0.0, 0.0], [-1.0, 0.0]]


def test_bad_arguments_are_refused():
    policy, teacher = policy_and_teacher()
    with pytest.raises(ValueError, match="direction is 'both'"):
        action_divergence(policy, teacher, "both")
    with pytest.raises(ValueError, match="Shapes differ"):
        action_divergence(policy, teacher[:, :2])
