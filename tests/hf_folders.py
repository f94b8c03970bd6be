"""Tiny random checkpoint folders of several model families, with chat templates.

The templates are written for these tests; each imitates what is special about its
family's real one.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as tf

from rllib_llm.modules.tiny import CHATML_TEMPLATE, build_tokenizer

LLAMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' }}"
    "{{ message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
# Keeps thinking only in turns after the last user message.
QWEN3_TEMPLATE = (
    "{% set ns = namespace(last_user=0) %}"
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{% set ns.last_user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}"
    "{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and loop.index0 < ns.last_user"
    " and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)

_CHATML = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
_LLAMA = {
    "bos_token": "<|begin_of_text|>",
    "eos_token": "<|eot_id|>",
    "additional_special_tokens": ["<|start_header_id|>", "<|end_header_id|>"],
}
_GEMMA = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
}
_LAYERS = ["sliding_attention", "full_attention"]
_GEMMA_SIZES = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64}

# name: (config class, settings, template, special tokens)
_FAMILIES = {
    "qwen2": (tf.Qwen2Config, {"tie": False}, CHATML_TEMPLATE, _CHATML),
    "qwen2_tied": (tf.Qwen2Config, {"tie": True}, CHATML_TEMPLATE, _CHATML),
    "qwen3": (tf.Qwen3Config, {"tie": True, "head_dim": 8}, QWEN3_TEMPLATE, _CHATML),
    "llama": (tf.LlamaConfig, {"tie": False}, LLAMA_TEMPLATE, _LLAMA),
    "llama_tied": (tf.LlamaConfig, {"tie": True}, LLAMA_TEMPLATE, _LLAMA),
    "gemma2": (
        tf.Gemma2Config,
        {"tie": True, **_GEMMA_SIZES, "final_logit_softcapping": 5.0},
        GEMMA_TEMPLATE,
        _GEMMA,
    ),
    "gemma3": (
        tf.Gemma3TextConfig,
        {"tie": True, **_GEMMA_SIZES, "layer_types": _LAYERS},
        GEMMA_TEMPLATE,
        _GEMMA,
    ),
    # Its layers are transposed (Conv1D), and its defaults have dropout.
    "gpt2": (tf.GPT2Config, {"tie": True}, CHATML_TEMPLATE, _CHATML),
    # These scale their logits, so trunk + output layer are not enough.
    "cohere": (
        tf.CohereConfig,
        {"tie": True, "logit_scale": 0.25},
        CHATML_TEMPLATE,
        _CHATML,
    ),
    "granite": (
        tf.GraniteConfig,
        {"tie": False, "logits_scaling": 4.0},
        CHATML_TEMPLATE,
        _CHATML,
    ),
}
CHAT_FAMILIES = ("qwen2", "qwen2_tied", "qwen3", "llama", "gemma2", "gemma3")
FAMILIES = tuple(_FAMILIES)

_TEXTS = [
    "Guess a number between 0 and 6. Answer as `Guess: <n>`.",
    "Too low. Too high. Correct! Observation, Reply, Answer.",
    "The quick brown fox jumps over the lazy dog; user assistant system model",
] * 4


def make_tokenizer(family: str):
    """Return the family's tokenizer: its special tokens and its chat template."""
    _, _, template, special = _FAMILIES[family]
    tokenizer = build_tokenizer(_TEXTS, vocab_size=340)
    tokenizer.pad_token = None  # as Llama has it
    tokenizer.add_special_tokens(special)
    tokenizer.chat_template = template
    return tokenizer


def write_folder(folder: Path, family: str, seed: int = 0, **changes) -> str:
    """Write a random model and its tokenizer as a Hugging Face folder.

    Args:
        folder: Where to.
        family: One of ``FAMILIES``.
        seed: Seeds the weights.
        changes: Overrides of the model's config.

    Returns:
        The folder's path.
    """
    config_class, settings, _, _ = _FAMILIES[family]
    tokenizer = make_tokenizer(family)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **settings,
        **changes,
    }
    settings["tie_word_embeddings"] = settings.pop("tie")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = tf.AutoModelForCausalLM.from_config(config_class(**settings))
        # Biases and norm scales start at constants, which would hide mistakes.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    tf.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tf.utils.logging.enable_progress_bar()
    tokenizer.save_pretrained(folder)
    return str(folder)
