"""ModelRunner: refused models, context lengths, restored state."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from engine_reference import build_model, check_turn, turn_params

from rllib_llm.engines import TorchEngine, generate
from rllib_llm.engines.model_runner import ModelRunner
from rllib_llm.errors import ConfigError, ModelError

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def test_linear_attention_is_refused_by_its_layer_types(model):
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ModelError, match=r"qwen3.*linear_attention"):
        ModelRunner(model)


def test_state_space_models_are_refused():
    config = tf.MambaConfig(
        vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2
    )
    with pytest.raises(ModelError, match="mamba"):
        ModelRunner(tf.MambaForCausalLM(config))


def test_encoder_decoders_are_refused():
    config = tf.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    with pytest.raises(ModelError, match=r"t5.*encoder-decoder"):
        ModelRunner(tf.T5ForConditionalGeneration(config))


def test_models_without_position_ids_are_refused():
    config = tf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2)
    with pytest.raises(ModelError, match="bloom"):
        ModelRunner(tf.BloomForCausalLM(config))


@pytest.mark.parametrize("forward", ["auto", "plain"])
def test_models_with_flash_attention_are_served_with_sdpa(model, forward):
    """The Learner keeps flash attention, which no CPU could run."""

    def turns():
        engine = TorchEngine(model, max_slots=2, max_context_tokens=64, forward=forward)
        prompts = [[3, 1, 4, 1, 5], [9, 2, 6]]
        params = [turn_params(seed) for seed in range(2)]
        return [list(turn.token_ids) for turn in generate(engine, prompts, params)]

    expected = turns()
    model.config._attn_implementation_internal = "flash_attention_2"
    assert turns() == expected
    assert model.config._attn_implementation == "flash_attention_2"


def test_attention_without_masks_and_plain_modules_are_refused(model):
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ModelError, match="attn_implementation='sdpa'"):
        ModelRunner(model)
    model.config._attn_implementation_internal = "flash_attention_2"
    model.config.attn_logit_softcapping = 50.0
    with pytest.raises(ModelError, match="sdpa does not compute"):
        ModelRunner(model)
    model.config.attn_logit_softcapping = None
    model._supports_sdpa = False  # as gpt-oss, whose attention has sinks
    with pytest.raises(ModelError, match="sdpa does not compute"):
        ModelRunner(model)
    with pytest.raises(ModelError, match="Linear"):
        ModelRunner(torch.nn.Linear(2, 2))


def test_contexts_longer_than_the_model_are_refused():
    with pytest.raises(ConfigError, match="256 positions"):
        TorchEngine(build_model("gpt2"), max_slots=1, max_context_tokens=257)
    with pytest.raises(ConfigError, match="max_slots"):
        TorchEngine(build_model("gpt2"), max_slots=0, max_context_tokens=16)


def test_bytes_per_token_are_measured(model):
    assert ModelRunner(model).bytes_per_token == 2 * 2 * 2 * 16 * 4


def test_a_failing_forward_restores_the_model(model):
    runner = ModelRunner(model, forward="plain")
    model.train()
    with pytest.raises(RuntimeError, match="inside"), runner.serving():
        assert not model.training
        raise RuntimeError("inside")
    assert model.training
    assert model.config._attn_implementation == "sdpa"


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0, 4.0, 6.0, 8.0] * 2,
    "original_max_position_embeddings": 32,
}


def long_rope_model():
    config = tf.Phi3Config(
        **SMALL,
        max_position_embeddings=256,
        original_max_position_embeddings=32,
        rope_parameters=LONG_ROPE,
        initializer_range=0.3,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return tf.AutoModelForCausalLM.from_config(config).eval()


def test_long_rope_is_limited_to_the_short_frequencies():
    model = long_rope_model()
    engine = TorchEngine(model, max_slots=1, max_context_tokens=32)
    prompt = list(range(1, 9))
    params = turn_params(0, 24)
    (result,) = generate(engine, [prompt], [params])
    check_turn(model, prompt, params, result)
    assert len(result.token_ids) == 24
    with pytest.raises(ConfigError, match=r"\(33\).*32 positions.*long-RoPE"):
        TorchEngine(model, max_slots=1, max_context_tokens=33)


def test_the_probe_detects_frequencies_that_change():
    model = long_rope_model()
    runner = ModelRunner(model)
    runner.check_context(32)
    # Like an architecture whose config does not show where the frequencies change.
    model.config.rope_parameters = {**LONG_ROPE, "rope_type": "unheard_of"}
    assert model.model.rotary_emb.rope_type == "longrope"
    with pytest.raises(ModelError, match=r"those without.*up to position 40"):
        runner.check_context(40)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3", "gpt2", "qwen3"])
def test_the_probe_of_far_positions_accepts_other_families(family):
    runner = ModelRunner(build_model(family), forward="plain")
    for context in (7, 8, 256):
        runner.check_context(context)
