"""Context length of a model: the positions that a conversation may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def context_length(model_config: PretrainedConfig) -> int | None:
    """Return the number of usable positions, or None if the config does not say.

    Models with long-RoPE have a second set of rotary frequencies for sequences longer
    than ``original_max_position_embeddings``. The set would change in the middle of a
    conversation: cached keys keep the first, and whether a row is scored with the
    second would depend on its length and on the padding of its batch.

    Args:
        model_config: A text config of transformers.
    """
    lengths = [getattr(model_config, "max_position_embeddings", None)]
    limits = [int(n) for n in (*lengths, *_long_rope_lengths(model_config)) if n]
    return min(limits, default=None)


def why_shorter(model_config: PretrainedConfig) -> str:
    """Return why :func:`context_length` is below all positions of the model, or ""."""
    lengths = list(_long_rope_lengths(model_config))
    if not lengths:
        return ""
    return (
        f" Its long-RoPE changes all rotary frequencies beyond {min(lengths)} tokens, "
        "which would make cached keys stale and mix both sets within a batch."
    )


def _long_rope_lengths(model_config: PretrainedConfig) -> Iterator[int]:
    rope = getattr(model_config, "rope_parameters", None) or {}
    # Some models have one entry per layer type.
    entries = [rope, *(v for v in rope.values() if isinstance(v, Mapping))]
    for entry in entries:
        if entry.get("rope_type") == "longrope":
            yield int(entry["original_max_position_embeddings"])
