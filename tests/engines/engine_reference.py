"""Tiny models, and a slow sampler without a cache as reference for the engines."""

from __future__ import annotations

import numpy as np
import torch
import transformers as tf

from rllib_llm.engines import SamplingParams, TorchEngine
from rllib_llm.engines.token_sampling import draw_uniforms

VOCAB = 128

_FAMILIES = {
    "qwen2": (tf.Qwen2Config, tf.Qwen2ForCausalLM, {}),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, {"head_dim": 16}),
    "llama": (tf.LlamaConfig, tf.LlamaForCausalLM, {}),
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM, {"sliding_window": 8}),
    "gemma2": (
        tf.Gemma2Config,
        tf.Gemma2ForCausalLM,
        {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    ),
    "gemma3": (
        tf.Gemma3TextConfig,
        tf.Gemma3ForCausalLM,
        {
            "head_dim": 16,
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gpt2": (tf.GPT2Config, tf.GPT2LMHeadModel, {}),
}
FAMILIES = tuple(_FAMILIES)


def build_model(family: str = "qwen3", seed: int = 0, **changes) -> torch.nn.Module:
    """Return a random model whose logits depend strongly on all earlier tokens."""
    config_class, model_class, settings = _FAMILIES[family]
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "initializer_range": 0.2,
        **settings,
        **changes,
    }
    torch.manual_seed(seed)
    return model_class(config_class(**settings)).eval()


def reference_logps(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """Process one row of logits step by step, in float64. [V]"""
    scaled = logits.double().numpy() / (params.temperature or 1.0)
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    if params.temperature > 0.0:
        order = np.argsort(-probs, kind="stable")
        if params.top_k:
            probs[order[params.top_k :]] = 0.0
            probs /= probs.sum()
        mass = 0.0
        for token in order:
            if params.top_p < 1.0 and mass >= params.top_p:
                probs[token] = 0.0
            mass += probs[token]
        probs /= probs.sum()
    with np.errstate(divide="ignore"):
        return np.log(probs)


@torch.no_grad()
def reference_turn(
    model: torch.nn.Module, history: list[int], params: SamplingParams
) -> tuple[list[int], list[float]]:
    """Sample a turn with one full forward pass per token."""
    uniforms = draw_uniforms(params.seed, params.max_new_tokens)
    tokens: list[int] = []
    logps: list[float] = []
    for uniform in uniforms:
        ids = torch.tensor([list(history) + tokens])
        row = reference_logps(model(input_ids=ids).logits[0, -1], params)
        if params.temperature == 0.0:
            token = int(row.argmax())
        else:
            token = int((np.exp(row).cumsum() <= uniform).sum())
        tokens.append(token)
        logps.append(row[token])
        if token in params.stop_token_ids:
            break
    return tokens, logps


class Letters:
    """Decodes a token to two letters, so that stop strings span two tokens."""

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens is False
        return "".join(chr(97 + i % 26) + chr(97 + i // 26) for i in ids)


def random_prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Return prompts of ragged lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest, count)
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


def turn_params(seed: int, count: int = 12, **settings) -> SamplingParams:
    """Return settings of a turn of ``count`` tokens."""
    return SamplingParams(max_new_tokens=count, seed=seed, **settings)


def make_engine(model, **settings) -> TorchEngine:
    """Return an engine with room for most tests."""
    return TorchEngine(model, **{"max_slots": 8, "max_context_tokens": 200, **settings})


def run_until_idle(engine: TorchEngine) -> dict:
    """Step until idle; return results by session."""
    results = {}
    while engine.num_unfinished:
        results.update((done.session_id, done) for done in engine.step())
    return results


def check_turn(model, history, params, result) -> list[int]:
    """Compare one turn with the reference; return the history after it."""
    tokens, logps = reference_turn(model, history, params)
    assert result.token_ids.tolist() == tokens
    assert result.token_ids.dtype == np.int32
    assert result.logps.dtype == np.float32
    np.testing.assert_allclose(result.logps, logps, atol=1e-4)
    return history + tokens
