"""The machine and the versions of what the parts use."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from part import GIB, Part, run

PACKAGES = (
    "torch",
    "transformers",
    "ray",
    "vllm",
    "peft",
    "accelerate",
    "flash-attn",
    "pytest",
    "gymnasium",
    "pettingzoo",
)


def main(part: Part) -> None:
    """Write one row per fact."""
    part.row(what="Python", value=platform.python_version())
    part.row(what="CPU cores", value=os.cpu_count())
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        part.row(what=name, value=version)
    import torch

    part.row(what="CUDA of torch", value=torch.version.cuda)
    if part.device_name == "cuda":
        device = torch.cuda.get_device_properties(0)
        part.row(what="device", value=device.name)
        part.row(what="device memory, GiB", value=round(device.total_memory / GIB, 1))


if __name__ == "__main__":
    run(main, "torch")
