"""Loaded models compute the same in training mode as in evaluation mode."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from torch import nn

from rllib_llm.errors import ModelError
from rllib_llm.modules.dropout import check_training_mode, disable_dropout
from rllib_llm.modules.loading import load_causal_lm

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
# Each has another kind of randomness: functional dropout from attributes of a layer or
# of the config, dropout modules, dropped layers, noise before the router of experts.
RANDOM = {
    "starcoder2": (
        tf.Starcoder2Config,
        {"residual_dropout": 0.3, "embedding_dropout": 0.3, "attention_dropout": 0.3},
    ),
    "opt": (
        tf.OPTConfig,
        {
            "dropout": 0.3,
            "attention_dropout": 0.3,
            "layerdrop": 0.5,
            "ffn_dim": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    "seed_oss": (
        tf.SeedOssConfig,
        {"residual_dropout": 0.3, "attention_dropout": 0.3, "head_dim": 8},
    ),
    "gpt2": (
        tf.GPT2Config,
        {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
    ),
    "mixtral": (
        tf.MixtralConfig,
        {"router_jitter_noise": 0.9, "num_local_experts": 4, "attention_dropout": 0.3},
    ),
}


def build(family: str) -> nn.Module:
    """Return a random model with randomness in its training mode."""
    config_class, settings = RANDOM[family]
    torch.manual_seed(0)
    config = config_class(**SIZES, initializer_range=0.3, **settings)
    return tf.AutoModelForCausalLM.from_config(config)


@torch.no_grad()
def logits(model: nn.Module, seed: int) -> torch.Tensor:
    """Return the logits of 16 tokens in the model's current mode. [1, T, V]"""
    torch.manual_seed(seed)
    return model(input_ids=torch.arange(16)[None], use_cache=False).logits


@pytest.mark.parametrize("family", RANDOM)
def test_a_loaded_model_is_not_random_in_training_mode(family, tmp_path):
    model = build(family).train()
    assert (logits(model, 1) - logits(model, 2)).abs().max() > 0.1  # the test can fail
    with pytest.raises(ModelError, match=r"in training mode differ from those in eval"):
        check_training_mode(model)
    assert model.training
    model.save_pretrained(tmp_path)
    loaded = load_causal_lm(str(tmp_path))
    assert not loaded.training
    expected = logits(loaded, 0)
    torch.testing.assert_close(expected, logits(model.eval(), 0))
    for seed in (1, 2):
        torch.testing.assert_close(logits(loaded.train(), seed), expected)


class Noisy(nn.Module):
    """Adds noise in training mode."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x, *args, **kwargs):
        noise = torch.randn_like(x) if self.training else 0.0
        return self.inner(x, *args, **kwargs) + noise


def test_a_model_that_stays_random_is_refused_unchanged():
    model = build("gpt2").eval()
    disable_dropout(model)
    check_training_mode(model)
    model.transformer.h[0].mlp = Noisy(model.transformer.h[0].mlp)
    model.transformer.h[1].train()
    state = torch.random.get_rng_state()
    with pytest.raises(ModelError, match=r"'gpt2' in training mode differ from those"):
        check_training_mode(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model.training and model.transformer.h[1].training
