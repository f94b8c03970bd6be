"""LoRA adapters as folders, for libraries that load them from disk only."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


def write_adapter(
    folder: str,
    named_tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    rank: int,
    alpha: float,
    **_: Any,
) -> None:
    """Write LoRA tensors as the adapter folder that peft and vLLM read.

    Args:
        folder: An existing folder.
        named_tensors: Pairs of peft's parameter name,
            ``<layer>.lora_A.default.weight``, and value.
        rank: Rank of the adapter.
        alpha: Its scale times the rank.
    """
    from safetensors.torch import save_file

    # Files have peft's prefix and no adapter name in the parameter names.
    tensors = {
        f"base_model.model.{name.replace('.default.', '.')}": tensor.cpu().contiguous()
        for name, tensor in named_tensors
    }
    # The adapted layers, derived from the tensors: `all-linear` has no fixed list.
    layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in tensors}
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(layers),
        "bias": "none",
    }
    Path(folder, "adapter_config.json").write_text(json.dumps(settings))
    save_file(
        tensors, Path(folder, "adapter_model.safetensors"), metadata={"format": "pt"}
    )


def memory_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder, in memory if the machine has /dev/shm."""
    has_memory = Path("/dev/shm").is_dir()
    return tempfile.TemporaryDirectory(
        # An adapter is written after every update; a disk would be slower than
        # sampling.
        dir="/dev/shm" if has_memory else None,
        prefix="rllib_llm_",
    )
