"""Faster norms compute what transformers' do, forward and backward."""

import copy

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from rllib_llm.algorithms.learner import fast_layers
from rllib_llm.algorithms.learner.fast_layers import _FastNorm, speed_up_norms

CPU = torch.device("cpu")


def is_faster(layer):
    return "forward" in vars(layer)


@pytest.mark.parametrize("norm", [LlamaRMSNorm, Qwen3RMSNorm])
@pytest.mark.parametrize("shape", [(5, 7, 16), (2, 3, 4, 16), (16,), (0, 16)])
def test_norms_and_gradients_are_the_same(norm, shape):
    generator = torch.Generator().manual_seed(0)
    plain = norm(16, eps=1e-6)
    with torch.no_grad():
        plain.weight.copy_(torch.randn(16, generator=generator))
    fast = copy.deepcopy(plain)
    speed_up_norms(fast, CPU)
    assert is_faster(fast)
    results = []
    for layer in (plain, fast):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        x = (3.0 * x).requires_grad_()
        y = layer(x)
        y.backward(torch.cos(torch.arange(y.numel())).view(shape))
        results.append((y, x.grad, layer.weight.grad))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 7, 16), (2, 3, 4, 16), (0, 16)])
@pytest.mark.parametrize("part", [2**16, 48])
def test_low_precision_rounds_like_transformers(monkeypatch, dtype, shape, part):
    monkeypatch.setattr(fast_layers, "_PART", part)  # entries; 48 are three rows
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, generator=generator)
    x = 3.0 * torch.randn(shape, generator=generator)
    grad = torch.randn(shape, generator=generator)

    def gradients(layer):
        with torch.no_grad():
            layer.weight.copy_(weight.to(dtype))
        inputs = x.to(dtype).to(layer.weight.dtype).requires_grad_()
        y = layer(inputs)
        y.backward(grad.to(dtype).to(y.dtype))
        return y, inputs.grad, layer.weight.grad

    fast = LlamaRMSNorm(16).to(dtype)
    speed_up_norms(fast, CPU)
    assert is_faster(fast)
    found = gradients(fast)
    plain, exact = gradients(LlamaRMSNorm(16).to(dtype)), gradients(LlamaRMSNorm(16))
    assert all(f.dtype == dtype for f in found)
    torch.testing.assert_close(found[0], plain[0], rtol=torch.finfo(dtype).eps, atol=0)
    for ours, theirs, true in zip(found, plain, exact, strict=True):
        if true.numel():  # never farther from the truth, but for a rounding
            slack = torch.finfo(dtype).eps * true.abs().max()
            error, limit = ((t - true).abs().max() for t in (ours, theirs))
            assert error <= limit + slack


def test_the_formula_holds_in_float64():
    generator = torch.Generator().manual_seed(0)
    x, w = (
        torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True)
        for s in ((3, 5, 8), (8,))
    )
    assert torch.autograd.gradcheck(lambda a, b: _FastNorm.apply(a, b, 1e-3), (x, w))


def test_frozen_weights_get_no_gradient():
    layer = LlamaRMSNorm(8)
    layer.weight.requires_grad_(False)
    speed_up_norms(layer, CPU)
    x = torch.randn(2, 8, requires_grad=True)
    layer(x).square().sum().backward()
    assert layer.weight.grad is None and x.grad.abs().sum() > 0


def test_other_formulas_and_types_are_left_alone():
    gemma = Gemma2RMSNorm(8)  # multiplies by 1 + weight
    torch.nn.init.ones_(gemma.weight)
    precise = LlamaRMSNorm(8).to(torch.float64)
    for layer in (gemma, gemma.bfloat16(), precise):
        speed_up_norms(layer, CPU)
        assert not is_faster(layer)
    layer = LlamaRMSNorm(8)
    speed_up_norms(layer, torch.device("meta"))
    assert not is_faster(layer)
    speed_up_norms(layer, CPU)
    half = torch.randn(2, 8).to(torch.bfloat16)
    assert torch.equal(layer(half), LlamaRMSNorm(8)(half))
