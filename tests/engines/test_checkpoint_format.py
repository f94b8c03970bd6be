"""Conversion of weights to the names and layouts of checkpoint files."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file

from rllib_llm.engines.checkpoint_format import CheckpointFormat
from rllib_llm.errors import ModelError

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
EXPERTS = {
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
}
FAMILIES = {
    "qwen2": (tf.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3_moe": (tf.Qwen3MoeConfig, EXPERTS),
    "qwen2_moe": (tf.Qwen2MoeConfig, EXPERTS),
    "olmoe": (tf.OlmoeConfig, EXPERTS),
    "mixtral": (tf.MixtralConfig, {"num_local_experts": 4}),
    "granitemoe": (tf.GraniteMoeConfig, {"num_local_experts": 4}),
    "gpt_neox": (tf.GPTNeoXConfig, {}),
    "phi3": (tf.Phi3Config, {}),
}


def build(family: str):
    """Return a random model."""
    config_class, settings = FAMILIES[family]
    config = config_class(**SIZES, **settings)
    return tf.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_converted_weights_equal_the_saved_files(family, tmp_path):
    model = build(family)
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    ours = dict(CheckpointFormat(str(tmp_path))(model.named_parameters()))
    assert ours.keys() == saved.keys()
    for name, tensor in saved.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=0)


def test_fused_experts_are_split_for_files(tmp_path):
    model = build("qwen3_moe")
    model.config.save_pretrained(tmp_path)
    names = {name for name, _ in model.named_parameters()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in names  # else nothing is tested
    converted = dict(CheckpointFormat(str(tmp_path))(model.named_parameters()))
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in converted


def test_weights_that_cannot_be_converted_are_refused(tmp_path):
    model = build("qwen3_moe")
    model.config.save_pretrained(tmp_path)
    convert = CheckpointFormat(str(tmp_path))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    with pytest.raises(ModelError, match=r"'model.layers.0' cannot be converted"):
        list(convert([(name, torch.zeros(()))]))
