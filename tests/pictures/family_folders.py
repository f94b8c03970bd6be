"""Tiny random folders of every supported family of vision-language models."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers as tf
from picture_helpers import TEXTS, write_vlm

from rllib_llm.modules.tiny import build_tokenizer

# As in SmolVLM's: content is a list of parts, roles are words, turns end with a token.
PARTS_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' }}"
    "{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
_TOWER = {**_SIZES, "image_size": 24, "patch_size": 4}
_CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
_CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
_SIDES = {"height": 24, "width": 24}


def _text(tokenizer, kind: str) -> dict:
    return {
        **_SIZES,
        "model_type": kind,
        "vocab_size": len(tokenizer),
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    }


def _write(folder, config, tokenizer, kind, processor) -> str:
    torch.manual_seed(0)
    model = kind(config)
    for parameter in model.parameters():
        # InternVL's layer scale and class tokens would be small or constant.
        if parameter.ndim == 1 or not parameter.any():
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if processor:
        path = Path(folder) / "preprocessor_config.json"
        path.write_text(json.dumps(processor))
    return str(folder)


def write_idefics3(folder) -> str:
    """Write a tiny Idefics3 with a template and control tokens like SmolVLM's."""
    special = ("<image>", "<fake_token_around_image>", "<global-img>")
    tokenizer = build_tokenizer(TEXTS, 360, (*special, "<end_of_utterance>"))
    tokenizer.eos_token = "<end_of_utterance>"
    tokenizer.chat_template = PARTS_TEMPLATE
    config = tf.Idefics3Config(
        text_config=_text(tokenizer, "llama"),
        vision_config=_TOWER,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=3,
        pad_token_id=0,
    )
    model = tf.Idefics3ForConditionalGeneration
    return _write(folder, config, tokenizer, model, None)


def write_llava(folder) -> str:
    """Write a tiny LLaVA: CLIP's tower, of which the layer before the last is read."""
    tokenizer = build_tokenizer(TEXTS, 360, ("<image>",))
    config = tf.LlavaConfig(
        text_config=_text(tokenizer, "llama"),
        vision_config={**_TOWER, "model_type": "clip_vision_model"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=36,
    )
    processor = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 24},
        "crop_size": _SIDES,
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
    }
    model = tf.LlavaForConditionalGeneration
    return _write(folder, config, tokenizer, model, processor)


def write_llava_siglip(folder) -> str:
    """Write a tiny LLaVA with two layers of SigLIP's tower and the text of a Qwen2."""
    tokenizer = build_tokenizer(TEXTS, 360, ("<image>",))
    config = tf.LlavaConfig(
        text_config=_text(tokenizer, "qwen2"),
        vision_config={**_TOWER, "model_type": "siglip_vision_model"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="full",
        vision_feature_layer=[-2, -1],
    )
    processor = {
        "image_processor_type": "SiglipImageProcessor",
        "size": _SIDES,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    model = tf.LlavaForConditionalGeneration
    return _write(folder, config, tokenizer, model, processor)


def write_llava_onevision(folder) -> str:
    """Write a tiny LLaVA-OneVision: a newline vector follows each picture."""
    tokenizer = build_tokenizer(TEXTS, 360, ("<image>", "<video>"))
    config = tf.LlavaOnevisionConfig(
        text_config=_text(tokenizer, "qwen2"),
        vision_config={**_TOWER, "model_type": "siglip_vision_model"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=[[24, 24], [24, 48]],
    )
    processor = {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "size": _SIDES,
        "image_grid_pinpoints": [[24, 24], [24, 48]],
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    model = tf.LlavaOnevisionForConditionalGeneration
    return _write(folder, config, tokenizer, model, processor)


def write_internvl(folder) -> str:
    """Write a tiny InternVL, whose projector merges squares of four patches."""
    special = ("<IMG_CONTEXT>", "<img>", "</img>")
    tokenizer = build_tokenizer(TEXTS, 360, special)
    config = tf.InternVLConfig(
        text_config=_text(tokenizer, "qwen2"),
        vision_config=_TOWER,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=9,
        tie_word_embeddings=False,
    )
    processor = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": _SIDES,
        "crop_to_patches": False,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    model = tf.InternVLForConditionalGeneration
    return _write(folder, config, tokenizer, model, processor)


def _qwen(folder, name, text, vision, colours, rope=None, **areas) -> str:
    special = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
    tokenizer = build_tokenizer(TEXTS, 360, special)
    ids = dict(zip(special, tokenizer.convert_tokens_to_ids(special), strict=True))
    kind = getattr(tf, f"{name}Config")
    half = _SIZES["hidden_size"] // _SIZES["num_attention_heads"] // 2
    turns = {"rope_type": "default", "rope_theta": 1e4}
    turns["mrope_section"] = [half // 2, half // 4, half // 4]
    config = kind(
        text_config={
            **_text(tokenizer, f"{kind.model_type}_text"),
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {**turns, **(rope or {})},
            **text,
        },
        vision_config={
            "depth": 2,
            "num_heads": _SIZES["num_attention_heads"],
            "patch_size": 4,
            "hidden_size": _SIZES["hidden_size"],
            "initializer_range": 0.2,
            **vision,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 4,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": colours[0],
        "image_std": colours[1],
        **areas,
    }
    model = getattr(tf, f"{name}ForConditionalGeneration")
    return _write(folder, config, tokenizer, model, processor)


def write_qwen2_vl(folder) -> str:
    """Write a tiny Qwen2-VL, whose projector merges squares of four patches."""
    vision = {"embed_dim": _SIZES["hidden_size"], "mlp_ratio": 2}
    colours = (_CLIP_MEAN, _CLIP_STD)
    areas = {"min_pixels": 64, "max_pixels": 600}
    return _qwen(folder, "Qwen2VL", {}, vision, colours, **areas)


def write_qwen2_5_vl(folder) -> str:
    """Write a tiny Qwen2.5-VL, whose tower attends in windows of 16 pixels."""
    vision = {
        "out_hidden_size": _SIZES["hidden_size"],
        "intermediate_size": 64,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    colours = (_CLIP_MEAN, _CLIP_STD)
    areas = {"min_pixels": 64, "max_pixels": 600}
    return _qwen(folder, "Qwen2_5_VL", {}, vision, colours, **areas)


def write_qwen3_vl(folder, layers=3) -> str:
    """Write a tiny Qwen3-VL: two layers of its tower feed its first layers of text."""
    head_dim = _SIZES["hidden_size"] // _SIZES["num_attention_heads"]
    text = {"head_dim": head_dim, "num_hidden_layers": layers}
    vision = {
        "out_hidden_size": _SIZES["hidden_size"],
        "intermediate_size": 64,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
    }
    areas = {"size": {"shortest_edge": 64, "longest_edge": 600}}
    rope, colours = {"mrope_interleaved": True}, ([0.5] * 3, [0.5] * 3)
    return _qwen(folder, "Qwen3VL", text, vision, colours, rope, **areas)


WRITERS = {
    "smolvlm": write_vlm,
    "idefics3": write_idefics3,
    "llava": write_llava,
    "llava_siglip": write_llava_siglip,
    "llava_onevision": write_llava_onevision,
    "internvl": write_internvl,
    "qwen2_vl": write_qwen2_vl,
    "qwen2_5_vl": write_qwen2_5_vl,
    "qwen3_vl": write_qwen3_vl,
}
"""Writers of folders by name."""
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Names of those with positions of three dimensions."""
COUNTS = {
    "smolvlm": 4,
    "idefics3": 4,
    "llava": 36,
    "llava_siglip": 36,
    "llava_onevision": 37,
    "internvl": 9,
    "qwen2_vl": 9,
    "qwen2_5_vl": 9,
    "qwen3_vl": 9,
}
"""Placeholders of one picture."""
