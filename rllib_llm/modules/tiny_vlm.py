"""Built-in tiny vision-language model: SmolVLM's architecture, with its own tokenizer.

Nothing is downloaded. As in the tiny model of text, the tokenizer is trained on
transcripts of the environment, and the initial weights are random, those of the vision
tower as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rllib_llm.modules.tiny import TinySizes, build_tokenizer, check_sizes, save_random

IMAGE_TOKEN = "<image>"
AROUND_TOKEN = "<fake_token_around_image>"
_SCALE = 2  # patches in each direction that become one placeholder

TINY_VLM_DEFAULTS: TinySizes = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "initializer_range": 0.06,
    "image_size": 32,
    "patch_size": 8,
    # Those of SmolVLM's processor.
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def save_tiny_vlm(
    folder: Path, texts: Iterable[str], *, seed: int, **sizes: Any
) -> None:
    """Write a tokenizer, a processor's settings and a randomly initialised model.

    Args:
        folder: Target folder.
        texts: Transcripts to train the tokenizer on.
        seed: Seed of the weights.
        sizes: Overrides of ``TINY_VLM_DEFAULTS``.
    """
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    check_sizes(sizes, TINY_VLM_DEFAULTS)
    settings = {**TINY_VLM_DEFAULTS, **sizes}
    image_size, patch_size = settings.pop("image_size"), settings.pop("patch_size")
    colours = {name: settings.pop(name) for name in ("image_mean", "image_std")}
    special = (IMAGE_TOKEN, AROUND_TOKEN)
    tokenizer = build_tokenizer(texts, settings["vocab_size"], special)
    settings["vocab_size"] = len(tokenizer)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers")
    tower = {name: settings[name] for name in (*names, "num_attention_heads")}
    config = SmolVLMConfig(
        text_config={
            **settings,
            "model_type": "llama",
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": None,
            "tie_word_embeddings": True,
        },
        vision_config={
            **tower,
            "image_size": image_size,
            "patch_size": patch_size,
            "initializer_range": settings["initializer_range"],
        },
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        scale_factor=_SCALE,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
    )
    save_random(
        folder, lambda: SmolVLMForConditionalGeneration(config), tokenizer, seed
    )
    _save_processor(folder, image_size, colours)


def _save_processor(folder: Path, size: int, colours: dict[str, list[float]]) -> None:
    """Write the settings of the family's image processor."""
    settings = {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_image_splitting": False,
        "do_resize": True,
        "size": {"longest_edge": size},
        "max_image_size": {"longest_edge": size},
        **colours,
    }
    text = json.dumps(settings, indent=2, sort_keys=True)
    (folder / "preprocessor_config.json").write_text(text)
