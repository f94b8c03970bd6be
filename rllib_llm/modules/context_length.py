"""Context length and text configuration of a model folder or name."""

from __future__ import annotations

import functools
from typing import Any

from rllib_llm.modules import loading, max_positions
from rllib_llm.modules.architectures import read_config
from rllib_llm.modules.gguf_header import read_header
from rllib_llm.modules.gguf_models import gguf_file, is_gguf
from rllib_llm.modules.tiny import BUILT_MODELS, defaults_of


def model_context_length(model: str) -> int | None:
    """Return the usable positions of ``model``, None if its config does not say."""
    if model in BUILT_MODELS:
        # The tiny model may not exist yet: it is built after the configuration is
        # validated.
        return defaults_of(model)["max_position_embeddings"]
    if is_gguf(model):
        return read_header(gguf_file(model)).context_length
    return max_positions.context_length(text_config(model))


@functools.lru_cache(maxsize=8)
def text_config(model: str) -> Any:
    """Return the text config of a checkpoint folder or hub id.

    Raises:
        ModelError: If the folder does not exist, or its model cannot be a policy.
    """
    loading.check_model_path(model)
    return read_config(model).get_text_config()
