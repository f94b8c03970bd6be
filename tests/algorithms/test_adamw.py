"""Low-precision parameters learn as float32 ones do."""

from __future__ import annotations

import copy

import pytest
import torch

from rllib_llm.algorithms.learner import adamw
from rllib_llm.algorithms.learner.adamw import MixedPrecisionAdamW, _may_be_fused


def train(parameters, optimizer, steps: int, seed: int = 0) -> None:
    """Take steps along random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator)
            parameter.grad = gradient.bfloat16().to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad()


def parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    """Return parameters that are exact in bfloat16."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(3, 4), (5,)]
    tensors = [torch.randn(s, generator=generator).bfloat16() for s in shapes]
    return [torch.nn.Parameter(t.to(dtype)) for t in tensors]


def test_float32_parameters_are_treated_as_by_torch():
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    train(ours, MixedPrecisionAdamW(ours, lr=1e-2, weight_decay=0.1), 5)
    # The same kernel, since another may round otherwise; the two are compared below.
    train(theirs, torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1, fused=True), 5)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("lr", [1e-2, 1e-6])
def test_bfloat16_parameters_are_rounded_float32_ones(lr):
    low, full = parameters(torch.bfloat16), parameters(torch.float32)
    optimizer = MixedPrecisionAdamW(low, lr=lr, weight_decay=0.1)
    train(low, optimizer, 20)
    train(full, torch.optim.AdamW(full, lr=lr, weight_decay=0.1, fused=True), 20)
    for ours, theirs in zip(low, full, strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, theirs.bfloat16())
        assert torch.equal(optimizer.state[ours]["master"], theirs)


def test_the_parameters_storage_and_gradients_stay():
    low = parameters(torch.bfloat16)
    optimizer = MixedPrecisionAdamW(low, lr=1e-2)
    places = [p.data_ptr() for p in low]
    for parameter in low:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert [p.data_ptr() for p in low] == places
    assert all(p.grad.dtype == torch.bfloat16 for p in low)


def test_a_saved_optimiser_goes_on_exactly():
    low = parameters(torch.bfloat16)
    optimizer = MixedPrecisionAdamW(low, lr=1e-3)
    train(low, optimizer, 3)
    again = [torch.nn.Parameter(p.detach().clone()) for p in low]
    restored = MixedPrecisionAdamW(again, lr=1e-3)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(
        value.dtype == torch.float32
        for state in restored.state.values()
        for value in state.values()
    )
    train(low, optimizer, 5, seed=1)
    train(again, restored, 5, seed=1)
    for ours, theirs in zip(low, again, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(
            optimizer.state[ours]["master"], restored.state[theirs]["master"]
        )


def test_a_parameter_written_from_outside_is_read_anew():
    low = parameters(torch.bfloat16)
    optimizer = MixedPrecisionAdamW(low, lr=1e-6)
    train(low, optimizer, 2)
    with torch.no_grad():
        low[0].fill_(3.0)
    train(low, optimizer, 1)
    torch.testing.assert_close(low[0], torch.full_like(low[0], 3.0))


def test_a_parameter_without_gradient_is_left_alone():
    low = parameters(torch.bfloat16)
    before = low[1].detach().clone()
    optimizer = MixedPrecisionAdamW(low, lr=1e-2)
    low[0].grad = torch.ones_like(low[0])
    optimizer.step()
    assert torch.equal(low[1], before)
    assert low[1] not in optimizer.state


def test_only_elements_that_were_written_to_are_read_anew():
    low = parameters(torch.bfloat16)
    optimizer = MixedPrecisionAdamW(low, lr=1e-6)
    train(low, optimizer, 2)
    kept = optimizer.state[low[0]]["master"].clone()
    with torch.no_grad():
        low[0][0].fill_(3.0)
    low[0].grad = torch.zeros_like(low[0])
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    master = optimizer.state[low[0]]["master"]
    assert torch.equal(master[0], torch.full_like(master[0], 3.0))
    assert torch.equal(master[1:], kept[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_cpus_a_step_is_that_of_torchs_other_kernels(dtype, monkeypatch):
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(64, 48, generator=generator).bfloat16()
    weights = []
    for fused in (True, None):
        parameter = torch.nn.Parameter(start.clone().to(dtype))
        used = []

        def chosen(*tensors, fused=fused, used=used):
            used.append(_may_be_fused(*tensors))
            return fused

        monkeypatch.setattr(adamw, "_may_be_fused", chosen)
        optimizer = MixedPrecisionAdamW([parameter], lr=1e-2, weight_decay=0.1)
        train([parameter], optimizer, 10)
        assert used == [True] * 10
        state = optimizer.state[parameter]
        assert state["step"] == 10
        weights.append(state.get("master", parameter.detach()))
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(weights[0], start.float(), atol=1e-3)


def test_a_gradient_with_other_strides_belongs_to_the_same_elements():
    generator = torch.Generator().manual_seed(3)
    gradient = torch.randn(6, 4, generator=generator)
    found = []
    for strided in (gradient, gradient.t().contiguous().t()):
        parameter = torch.nn.Parameter(torch.ones(6, 4))
        parameter.grad = strided
        MixedPrecisionAdamW([parameter], lr=1e-2, eps=1.0).step()
        found.append(parameter.detach())
    torch.testing.assert_close(*found)
    assert found[0].unique().numel() > 12
