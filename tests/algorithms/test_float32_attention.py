"""Attention of low-precision Learners on CPUs, in float32."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from learner_helpers import (
    fake_episode,
    gradients,
    make_config,
    make_learner,
    policy,
    update,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rllib_llm.algorithms.learner import fast_layers
from rllib_llm.algorithms.learner.fast_layers import (
    float32_attention_forward,
)
from rllib_llm.compat import FLOAT32_ATTENTION


def episodes():
    return [fake_episode(i, turns=1 + i % 4) for i in range(6)]


@pytest.fixture
def seen(monkeypatch):
    """Collects the dtypes of all calls of torch's attention."""
    calls = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(query, *args, **kwargs):
        calls.append(query.dtype)
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    return calls


def inputs(tokens=20, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, heads, tokens, 16, generator=generator)
        .to(dtype)
        .requires_grad_()
        for heads in (4, 2, 2)
    ]


def masks(tokens):
    visible = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    visible = visible[None, None].repeat(2, 1, 1, 1)
    visible[0, :, 5:, :3] = False
    low = torch.zeros(visible.shape, dtype=torch.bfloat16)
    low.masked_fill_(~visible, torch.finfo(torch.bfloat16).min)
    return {"none": None, "bool": visible, "additive": low}


@pytest.mark.parametrize("kind", ["none", "bool", "additive"])
def test_values_and_gradients_are_nearer_to_float64s_than_sdpas(kind):
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    mask = masks(20)[kind]
    grad = torch.randn(2, 20, 4, 16, generator=torch.Generator().manual_seed(1))
    results = {}
    for name, attend, dtype in (
        ("exact", sdpa_attention_forward, torch.float64),
        ("plain", sdpa_attention_forward, torch.bfloat16),
        ("ours", float32_attention_forward, torch.bfloat16),
    ):
        given = [x.detach().to(dtype).requires_grad_() for x in inputs()]
        used = mask.double() if dtype == torch.float64 and kind == "additive" else mask
        out, weights = attend(module, *given, used, scaling=0.3)
        assert weights is None and out.dtype == dtype
        out.backward(grad.to(torch.bfloat16).to(dtype))
        results[name] = [x.double() for x in (out.detach(), *(g.grad for g in given))]
    for exact, plain, ours in zip(*results.values(), strict=True):
        error, before = ((x - exact).norm() / exact.norm() for x in (ours, plain))
        assert error <= min(3e-3, 1.05 * float(before))


def test_elsewhere_it_is_sdpa(seen, monkeypatch):
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    most = fast_layers._MOST_TOKENS

    def dtype_of(given):
        seen.clear()
        float32_attention_forward(module, *given, None)
        return seen[0]

    assert dtype_of(inputs(most)) == torch.float32
    assert dtype_of(inputs(most + 1)) == torch.bfloat16
    assert dtype_of([x.detach() for x in inputs()]) == torch.float32
    assert dtype_of(inputs(dtype=torch.float64)) == torch.float64


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"autocast": "bfloat16"}])
def test_updates_use_it_and_have_the_same_gradient(settings, seen, monkeypatch):
    config = make_config(old_logps="learner", tis=None).language_model(**settings)
    learner = make_learner(config)
    name = policy(learner).lm.config._attn_implementation
    assert name == "sdpa"
    inner = policy(learner).lm.base_model.layers[0].self_attn
    names = []
    inner.register_forward_hook(
        lambda module, *_: names.append(module.config._attn_implementation)
    )
    seen.clear()
    found = gradients(learner, episodes())
    assert set(names) == {FLOAT32_ATTENTION}
    assert set(seen) == {torch.float32}
    assert policy(learner).lm.config._attn_implementation == name
    monkeypatch.setattr(fast_layers, "_MOST_TOKENS", 0)
    plain = gradients(make_learner(config), episodes())
    largest = max(float(g.norm()) for g in plain.values())
    gaps = [float((found[n] - g).norm()) / largest for n, g in plain.items()]
    assert 0.0 < max(gaps) < 0.05


def test_the_chosen_attention_is_restored_after_an_error():
    config = make_config(nan_policy="error").language_model(dtype="bfloat16")
    learner = make_learner(config)
    torch.nn.init.constant_(policy(learner).value_head.out.bias, torch.inf)
    with pytest.raises(Exception, match="finite"):
        update(learner, episodes())
    assert policy(learner).lm.config._attn_implementation == "sdpa"


def test_other_attentions_and_devices_and_compiled_models_keep_theirs():
    eager = make_config().language_model(
        dtype="bfloat16", model_kwargs={"attn_implementation": "eager"}
    )
    learner = make_learner(eager)
    with learner.in_update():
        assert policy(learner).lm.config._attn_implementation == "eager"
    assert make_learner(make_config())._low_precision_models() == []
    learner = make_learner(make_config().language_model(dtype="bfloat16"))
    assert learner._low_precision_models() == [policy(learner).lm]
    learner.config.lm_compile = True
    assert learner._low_precision_models() == []
    learner.config.lm_compile = False
    learner._device = torch.device("cuda")
    assert learner._low_precision_models() == []
