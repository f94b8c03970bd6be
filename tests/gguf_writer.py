"""Tiny Llama models as GGUF files, written as llama.cpp's converter lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rllib_llm.modules.tiny import build_tokenizer

TEXTS = ["Guess a number between 0 and 16. Answer <n>.", "Too low:  12, 7.\n\n3"] * 6
_CONTROL, _NORMAL = 3, 1


def tiny_llama(num_tokens: int) -> LlamaForCausalLM:
    """Return a random model whose sizes are multiples of the quantized blocks."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=num_tokens,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(path: Path, *, quantized: bool = False, **changes: Any) -> Any:
    """Write a model and its tokenizer into ``path``.

    Args:
        path: The file.
        quantized: Whether matrices are stored in blocks of 8-bit numbers (Q8_0).
        changes: ``arch``, ``template``, ``eos`` or ``pre`` in place of the usual.

    Returns:
        The model and the tokenizer.
    """
    import gguf

    tokenizer = build_tokenizer(TEXTS, vocab_size=320)
    model = tiny_llama(len(tokenizer))
    writer = gguf.GGUFWriter(path, changes.get("arch", "llama"))
    _write_sizes(writer, model.config)
    _write_tokenizer(writer, tokenizer, changes)
    for name, values in _tensors(model):
        if quantized and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            blocks = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, tokenizer


def _write_sizes(writer: Any, config: LlamaConfig) -> None:
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: Any, tokenizer: Any, changes: dict[str, Any]) -> None:
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    by_id = {i: t for t, i in tokenizer.get_vocab().items()}
    special = {t["id"] for t in parts["added_tokens"]}
    merges = parts["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "smollm"))
    writer.add_token_list([by_id[i] for i in range(len(by_id))])
    kinds = [_CONTROL if i in special else _NORMAL for i in range(len(by_id))]
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    if changes.get("eos", True):
        writer.add_eos_token_id(tokenizer.eos_token_id)
    template = changes.get("template", tokenizer.chat_template)
    if template:
        writer.add_chat_template(template)


def _tensors(model: LlamaForCausalLM) -> list[tuple[str, Any]]:
    config, weights = model.config, dict(model.named_parameters())
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    found = [
        ("token_embd.weight", weights["model.embed_tokens.weight"]),
        ("output_norm.weight", weights["model.norm.weight"]),
    ]
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            if theirs == "attn_q":
                weight = _interleaved(weight, config.num_attention_heads)
            if theirs == "attn_k":
                weight = _interleaved(weight, config.num_key_value_heads)
            found.append((f"blk.{layer}.{theirs}.weight", weight))
    return [(name, w.detach().contiguous().numpy()) for name, w in found]


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a projection [heads * d, in] with rotary pairs beside each other."""
    d = weight.shape[0] // heads
    halves = weight.reshape(heads, 2, d // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)
