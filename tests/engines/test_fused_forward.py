"""Fused forward against transformers' own modules."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch
from engine_reference import (
    build_model,
    check_turn,
    make_engine,
    random_prompts,
    run_until_idle,
    turn_params,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from rllib_llm.engines import fused_forward, generate
from rllib_llm.engines.fused_forward import _Norm
from rllib_llm.engines.fused_layout import why_not_fused
from rllib_llm.engines.multi_lora_linear import pad_rows
from rllib_llm.errors import ConfigError, ModelError
from rllib_llm.modules.lora import add_lora, share_base

SETTINGS = {
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen2 windows": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "llama": ("llama", {}),
    "llama with all biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3 positions": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral": ("mistral", {}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "one key head": ("qwen3", {"num_key_value_heads": 1}),
    "no grouped heads": ("llama", {"num_key_value_heads": 4, "head_dim": 12}),
}


def _play(model, forward: str, turns: int = 2) -> list:
    """Return the results of ragged sessions over several turns."""
    engine = make_engine(model, forward=forward)
    assert engine.is_fused == (forward == "auto")
    results = []
    for turn in range(turns):
        for i, new in enumerate(random_prompts(6, seed=turn)):
            if turn == 0:
                engine.open(i)
            engine.submit(i, new, turn_params(10 * turn + i, 8 + i))
        done = run_until_idle(engine)
        results += [done[i] for i in range(6)]
    return results


def _check_same_play(model) -> None:
    for one, other in zip(_play(model, "plain"), _play(model, "auto"), strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logps, other.logps, atol=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_and_logps_equal_the_plain_path(name):
    family, settings = SETTINGS[name]
    _check_same_play(build_model(family, **settings))


def _with_lora(model, targets) -> None:
    add_lora(model, {"rank": 4, "target_modules": targets})
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)


@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], "all-linear"])
def test_adapters_change_the_logits(targets):
    pytest.importorskip("peft")
    model = build_model("qwen3")
    bare = _play(model, "auto")
    _with_lora(model, targets)
    model.train()  # adapter dropout, if any, must stay off
    _check_same_play(model)
    adapted = _play(model, "auto")
    assert any(
        a.token_ids.tolist() != b.token_ids.tolist()
        for a, b in zip(bare, adapted, strict=True)
    )
    assert all(m.training for m in model.modules())


def test_adapter_dropout_is_off_while_sampling():
    pytest.importorskip("peft")
    model = build_model("qwen3")
    add_lora(model, {"rank": 4, "dropout": 0.5, "target_modules": ["q_proj"]})
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    expected = _play(model.eval(), "plain")
    for one, other in zip(expected, _play(model.train(), "auto"), strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)


def test_adapters_added_later_apply_with_the_next_version():
    pytest.importorskip("peft")
    model = build_model("qwen3")
    engine = make_engine(model)
    _with_lora(model, "all-linear")
    engine.set_weights_version(1)
    (result,) = generate(engine, [[1, 2, 3]], [turn_params(0)])
    assert engine.is_fused
    check_turn(model, [1, 2, 3], turn_params(0), result)


def test_weights_changed_in_place_or_replaced_apply():
    model = build_model("qwen2")
    engine = make_engine(model)
    generate(engine, [[1, 2, 3]], [turn_params(0)])
    other = build_model("qwen2", seed=9)
    with torch.no_grad():
        for mine, new in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(new)
    engine.set_weights_version(1)
    (result,) = generate(engine, [[1, 2, 3]], [turn_params(1)])
    check_turn(other, [1, 2, 3], turn_params(1), result)
    third = build_model("qwen2", seed=11)
    for name in ("q_proj", "v_proj"):
        source = getattr(third.model.layers[0].self_attn, name)
        getattr(model.model.layers[0].self_attn, name).weight = source.weight
    engine.set_weights_version(2)
    (result,) = generate(engine, [[1, 2, 3]], [turn_params(2)])
    check_turn(model, [1, 2, 3], turn_params(2), result)
    assert engine.is_fused


@pytest.mark.parametrize("joined_bytes", [0, 2**26])
def test_joined_copies_give_the_same_tokens(joined_bytes, monkeypatch):
    monkeypatch.setattr("rllib_llm.engines.fused_forward._JOINED_BYTES", joined_bytes)
    _check_same_play(build_model("qwen3"))


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "mistral"])
def test_bfloat16_is_as_close_to_the_modules_as_the_plain_path(family):
    """Sampled log-probabilities differ from one full forward by less than 1e-3."""
    model = build_model(family, initializer_range=0.05)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.bfloat16()
    prompts = random_prompts(16, seed=5, longest=60)
    params = [turn_params(i, 24) for i in range(16)]
    gaps = {}
    for forward in ("plain", "auto"):
        engine = make_engine(model, forward=forward, max_slots=16)
        assert engine.is_fused == (forward == "auto")
        results = generate(engine, prompts, params)
        gaps[forward] = np.mean(
            [_logp_gap(model, p, r) for p, r in zip(prompts, results, strict=True)]
        )
    assert gaps["plain"] < 1e-3
    assert gaps["auto"] < 1e-3


def test_low_precision_products_on_cpus_have_few_shapes():
    shapes = set()
    for count in range(1, 600):
        x = torch.randn(count, 3).bfloat16()
        padded = pad_rows(x)
        assert torch.equal(padded[:count], x)
        assert not padded[count:].any()
        assert len(padded) < count + max(16, count / 8 + 1)
        shapes.add(padded.shape)
    assert len(shapes) <= 32
    precise = torch.randn(5, 3)
    assert pad_rows(precise) is precise
    elsewhere = torch.empty(5, 3, dtype=torch.bfloat16, device="meta")
    assert pad_rows(elsewhere) is elsewhere


@pytest.mark.parametrize("joined", [True, False])
def test_all_low_precision_products_of_a_pass_are_padded(monkeypatch, joined):
    model = build_model("qwen3").bfloat16()
    if not joined:
        monkeypatch.setattr(fused_forward, "_JOINED_BYTES", 0)
    linear, rows = torch.nn.functional.linear, []

    def counted(x, weight, bias=None):
        if x.ndim == 2:  # not those of the model's own forward, which the engine probes
            rows.append(len(x))
        return linear(x, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    generate(make_engine(model), random_prompts(3, seed=1), [turn_params(0, 5)] * 3)
    assert len(rows) > 20
    assert {count % 16 for count in rows} == {0}


@torch.no_grad()
def _logp_gap(model, prompt, result) -> float:
    ids = torch.tensor([prompt + result.token_ids.tolist()])
    logps = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    chosen = logps.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    return float((chosen - torch.from_numpy(result.logps)).abs().mean())


def test_float64_agrees_closely():
    model = build_model("qwen3").double()
    for one, other in zip(_play(model, "plain"), _play(model, "auto"), strict=True):
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_allclose(one.logps, other.logps, atol=1e-6)


def test_other_layouts_use_their_own_modules():
    for family in ("gemma2", "gemma3", "gpt2"):
        model = build_model(family)
        assert "is not one of" in why_not_fused(model)
        assert not make_engine(model).is_fused


def test_changed_modules_are_not_fused():
    assert why_not_fused(build_model("llama")) is None
    gelu = build_model("llama", hidden_act="gelu")
    assert "hidden_act" in why_not_fused(gelu)
    dynamic = build_model("llama")
    dynamic.model.rotary_emb.rope_type = "dynamic"
    assert "dynamic" in why_not_fused(dynamic)
    hooked = build_model("llama")
    hooked.model.layers[1].mlp.up_proj.register_forward_hook(lambda *_: None)
    assert "hooks" in why_not_fused(hooked)
    replaced = build_model("llama")
    replaced.model.norm = torch.nn.LayerNorm(32)
    assert "LayerNorm" in why_not_fused(replaced)
    patched = build_model("llama")
    attention = patched.model.layers[0].self_attn
    attention.forward = copy.copy(attention.forward)
    assert "was replaced" in why_not_fused(patched)
    mixed = build_model("llama")
    mixed.model.norm.bfloat16()
    assert "dtypes" in why_not_fused(mixed)


def test_a_failed_probe_falls_back_with_a_warning(monkeypatch, caplog):
    class Wrong:
        called = ()

        def __init__(self, model, others):
            self.vocab = model.config.vocab_size

        def __call__(self, cache, token_ids, positions, rows, wanted, *_):
            count = len(token_ids if wanted is None else wanted.tokens)
            return torch.zeros(count, self.vocab)

    monkeypatch.setattr("rllib_llm.engines.model_runner.FusedForward", Wrong)
    model = build_model("qwen3")
    with caplog.at_level(logging.WARNING, "rllib_llm"):
        engine = make_engine(model)
    assert not engine.is_fused
    assert "differ by" in caplog.text
    (result,) = generate(engine, [[1, 2, 3]], [turn_params(0)])
    check_turn(model, [1, 2, 3], turn_params(0), result)


def test_unknown_forward_is_refused(model):
    with pytest.raises(ConfigError, match="forward"):
        make_engine(model, forward="fused")


def test_training_flags_of_fused_modules_do_not_change(model):
    model.train()
    engine = make_engine(model)
    engine.open("s")
    engine.submit("s", [1, 2], turn_params(0, 2))
    seen = []
    embed = model.model.embed_tokens
    embed.register_forward_hook(lambda *_: seen.append(model.training))
    run_until_idle(engine)
    assert seen and all(seen)


def _team(count):
    """Return models with different adapters on one base model."""
    models = [build_model("qwen3") for _ in range(count)]
    for seed, model in enumerate(models):
        _with_lora(model, "all-linear" if seed % 2 else ["q_proj", "down_proj"])
        torch.manual_seed(10 + seed)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    bases = [share_base(model, "test team", "float32") for model in models]
    return models, bases


@pytest.mark.parametrize("drafted", [0, 4])
def test_policies_on_one_base_share_batches(drafted):
    pytest.importorskip("peft")
    models, _bases = _team(3)
    engine = make_engine(
        models[0], max_slots=12, others=models[1:], num_speculative_tokens=drafted
    )
    prompts = random_prompts(12)
    for _ in range(12 if drafted else 1):
        engine.reset_stats()
        for i, prompt in enumerate(prompts):
            engine.open(i, adapter=i % 3)
            engine.submit(i, prompt, turn_params(i))
        results = {r.session_id: r for r in run_until_idle(engine).values()}
        for i, prompt in enumerate(prompts):
            check_turn(models[i % 3], prompt, turn_params(i), results[i])
            engine.close(i)
    stats = engine.stats()
    assert stats["forwards"] < 3 * max(len(r.token_ids) for r in results.values())
    assert (stats["accepted_tokens"] > 60) == bool(drafted)


def test_a_prompt_is_not_shared_between_adapters():
    pytest.importorskip("peft")
    models, _bases = _team(2)
    engine = make_engine(models[0], max_slots=4, others=models[1:])
    prompt = random_prompts(1)[0][:1] * 40
    for i in range(4):
        engine.open(i, adapter=i % 2)
        engine.submit(i, prompt, turn_params(i))
    results = {r.session_id: r for r in run_until_idle(engine).values()}
    for i in range(4):
        check_turn(models[i % 2], prompt, turn_params(i), results[i])
    assert engine.stats()["shared_tokens"] == 2 * 39


def test_models_on_different_bases_are_refused():
    pytest.importorskip("peft")
    models = [build_model("qwen3", seed=seed) for seed in (0, 1)]
    for model in models:
        _with_lora(model, ["q_proj"])
    with pytest.raises(ModelError, match="base weights differ"):
        make_engine(models[0], others=models[1:])


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_norms_of_small_values(size):
    """Epsilon counts where the mean of the squares is of its size."""
    torch.manual_seed(0)
    norms = [Qwen3RMSNorm(8, eps=1e-6).double() for _ in range(2)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    x = size * torch.randn(3, 5, 8, dtype=torch.float64)
    together = _Norm(*norms)
    together.prepare((4, 1))
    expected = torch.cat([norms[0](x[:, :4]), norms[1](x[:, 4:])], 1)
    # transformers squares in float32.
    torch.testing.assert_close(together(x), expected, rtol=1e-5, atol=1e-6)
    alone = _Norm(norms[0])
    alone.prepare((4, 1))
    torch.testing.assert_close(alone(x), norms[0](x), rtol=1e-5, atol=1e-6)
