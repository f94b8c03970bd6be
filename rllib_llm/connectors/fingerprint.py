"""Fingerprint of a tokenizer, to tell whether stored ids can be used as they are."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Set by calls of the tokenizer, without a change of what an id means.
_OF_CALLS = ("padding", "truncation")


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return 16 hexadecimal digits that depend on a tokenizer's ids and chat template.

    Args:
        tokenizer: A transformers tokenizer.
    """
    content = [tokenizer_contents(tokenizer), tokenizer.chat_template]
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def tokenizer_contents(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return what decides the ids of a text, as JSON can hold it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # written in Python: vocabulary and special tokens
        return {
            "vocab": tokenizer.get_vocab(),
            "special": tokenizer.special_tokens_map,
        }
    contents: dict[str, Any] = json.loads(backend.to_str())
    return {k: v for k, v in contents.items() if k not in _OF_CALLS}
