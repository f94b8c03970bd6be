"""Conversion of weights to the names and layouts of checkpoint files, for vLLM.

For some architectures transformers' modules differ from the checkpoint files: all
experts of a mixture in one tensor, several projections in one tensor, other names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from rllib_llm import compat
from rllib_llm.errors import ModelError
from rllib_llm.modules.architectures import auto_class, fused_experts

# Conversions do not combine tensors of several layers. Converting layer by layer keeps
# the copies of one layer in memory at a time.
_LAYER = re.compile(r"(.*?\.\d+)\.")
# The towers of CLIP and SigLIP lost a level of modules in transformers 5, which the
# files of LLaVAs on the hub and vLLM's modules have.
_TOWER = re.compile(r"(^|\.)vision_tower\.(?!vision_model\.)")


class CheckpointFormat:
    """Converts a model's weights to the format of its checkpoint files.

    Args:
        model: Folder or hub id.
    """

    def __init__(self, model: str) -> None:
        """Build the modules on the meta device; they define the conversion."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(os.path.expanduser(model))
        with torch.device("meta"):
            self._skeleton: Any = auto_class(config).from_config(config)

    @property
    def _has_flat_tower(self) -> bool:
        return self._skeleton.config.model_type in ("llava", "llava_onevision")

    @property
    def has_experts(self) -> bool:
        """True if the model is a mixture of experts."""
        return bool(fused_experts(self._skeleton))

    def __call__(
        self,
        named_tensors: Iterable[tuple[str, torch.Tensor]],
        prepare: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all weights of the model in the format of its files.

        Args:
            named_tensors: All weights, by the parameter names of transformers.
            prepare: Called on the tensors of a layer before it is converted, so that
                the results for one layer exist at a time; None: nothing.

        Raises:
            ModelError: If some cannot be converted.
        """
        layers: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in named_tensors:
            match = _LAYER.match(name)
            layers.setdefault(match[1] if match else "", {})[name] = tensor
        for layer, tensors in layers.items():
            if prepare is not None:
                tensors = {name: prepare(tensor) for name, tensor in tensors.items()}
            try:
                converted = compat.checkpoint_weights(self._skeleton, tensors)
            except Exception as error:  # transformers' conversions raise any type
                raise ModelError(
                    f"The weights of {layer or type(self._skeleton).__name__!r} cannot "
                    "be converted to the format of checkpoint files, which vLLM loads "
                    f"({type(error).__name__}: {error}). Use engine='torch'."
                ) from error
            for name, tensor in converted.items():
                if self._has_flat_tower:
                    name = _TOWER.sub(r"\1vision_tower.vision_model.", name)
                yield name, tensor
