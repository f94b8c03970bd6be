"""Context length and text configuration of a model folder or name."""

from __future__ import annotations

import functools
from typing import Any

from rllib_llm.modules import loading, positions
from rllib_llm.modules.architectures import read_config


def model_context_length(model: str) -> int | None:
    """Return the usable positions of ``model``, None if its config does not say."""
    if model == "tiny":
        from rllib_llm.modules.tiny import TINY_DEFAULTS

        return TINY_DEFAULTS["max_position_embeddings"]
    return positions.context_length(text_config(model))


@functools.lru_cache(maxsize=8)
def text_config(model: str) -> Any:
    """Return the text config of a checkpoint folder or hub id.

    Raises:
        ModelError: If the folder does not exist, or its model cannot be a policy.
    """
    loading.check_model_path(model)
    return read_config(model).get_text_config()
