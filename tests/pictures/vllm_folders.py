"""Folders of vision-language models that vLLM loads, with their processors."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import family_folders
import transformers as tf
from safetensors.torch import load_file, save_file

from rllib_llm.pictures.spec import image_spec

_HALF = [0.5, 0.5, 0.5]


def write_for_vllm(name: str, folder: Path) -> str:
    """Write the tiny folder of a family with what vLLM needs beside the model.

    Args:
        name: "idefics3", "smolvlm", "llava", "llava_onevision", "internvl", or one of
            Qwen's families.
        folder: The target.
    """
    # vLLM's attention on CPUs needs heads of size 32.
    sizes = {"hidden_size": 64, "num_attention_heads": 2}
    with (
        mock.patch.dict(family_folders._SIZES, sizes),
        mock.patch.dict(family_folders._TOWER, sizes),
    ):
        _WRITERS[name](folder)
    return str(folder)


def _write_idefics3(folder: Path, processor: str = "Idefics3") -> None:
    family_folders.write_idefics3(folder)
    image_processor = {
        "image_processor_type": f"{processor}ImageProcessor",
        "image_mean": _HALF,
        "image_std": _HALF,
    }
    _write(folder, "preprocessor_config.json", image_processor)
    count = image_spec(str(folder)).count
    settings = {"processor_class": f"{processor}Processor", "image_seq_len": count}
    _write(folder, "processor_config.json", settings)


def _write_smolvlm(folder: Path) -> None:
    with (
        mock.patch.object(tf, "Idefics3Config", tf.SmolVLMConfig),
        mock.patch.object(
            tf,
            "Idefics3ForConditionalGeneration",
            tf.SmolVLMForConditionalGeneration,
        ),
    ):
        _write_idefics3(folder, "SmolVLM")


def _write_llava(folder: Path) -> None:
    family_folders.write_llava(folder)
    _name_as_on_the_hub(folder)


def _write_llava_onevision(folder: Path) -> None:
    family_folders.write_llava_onevision(folder)
    _name_as_on_the_hub(folder)
    spec = image_spec(str(folder))
    settings = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": spec.count - 1,  # without the newline
        "vision_feature_select_strategy": "full",
        "patch_size": spec.patch,
    }
    _write(folder, "processor_config.json", settings)


def _name_as_on_the_hub(folder: Path) -> None:
    """Give a tower's weights the names of files on the hub, which vLLM loads."""
    file = folder / "model.safetensors"
    old, new = "vision_tower.", "vision_tower.vision_model."
    tensors = {name.replace(old, new): t for name, t in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


def _write_internvl(folder: Path) -> None:
    family_folders.write_internvl(folder)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer["extra_special_tokens"] = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<IMG_CONTEXT>",
    }
    _write(folder, "tokenizer_config.json", tokenizer)
    count = image_spec(str(folder)).count
    settings = {"processor_class": "InternVLProcessor", "image_seq_length": count}
    _write(folder, "processor_config.json", settings)


def _write(folder: Path, name: str, values: dict) -> None:
    (folder / name).write_text(json.dumps(values))


_WRITERS = {
    "idefics3": _write_idefics3,
    "smolvlm": _write_smolvlm,
    "llava": _write_llava,
    "llava_onevision": _write_llava_onevision,
    "internvl": _write_internvl,
    **{name: family_folders.WRITERS[name] for name in family_folders.QWEN},
}
