"""Sums of gradients over several Learners."""

from __future__ import annotations

import pytest
import torch
from side_by_side import call_side_by_side

from rllib_llm import distributed


@pytest.mark.parametrize("message", [2**22, 2])
def test_gradients_are_summed_and_absent_where_no_learner_has_one(message, monkeypatch):
    monkeypatch.setattr(distributed, "_MESSAGE", message)
    # By Learner: three parameters; the second has a gradient on one, the third on none.
    given = [([1.0, 2.0, 3.0], None, None), ([10.0, 20.0, 30.0], [5.0], None)]
    learners = []
    for gradients in given:
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (3, 1, 2)]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = torch.tensor(gradient)
        learners.append(parameters)

    call_side_by_side(
        learners,
        learners,
        lambda _, parameters: distributed.sum_gradients(parameters),
        monkeypatch,
    )

    for first, second, third in learners:
        torch.testing.assert_close(first.grad, torch.tensor([11.0, 22.0, 33.0]))
        torch.testing.assert_close(second.grad, torch.tensor([5.0]))
        assert third.grad is None


def test_no_parameters_are_no_message(monkeypatch):
    call_side_by_side(
        [0, 1], [[], []], lambda _, p: distributed.sum_gradients(p), monkeypatch
    )
