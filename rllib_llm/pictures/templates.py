"""Chat templates that read a message's content as a list of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TEXT = "Content-3c58"  # which no template contains


def writes_parts(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer's template writes parts of content, and no strings.

    Those of vision-language models often do.
    """

    def is_written(content: Any) -> bool:
        try:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False
            )
        except Exception:  # jinja passes any exception of the template on
            return False
        return text.count(_TEXT) == 1

    return not is_written(_TEXT) and is_written([{"type": "text", "text": _TEXT}])


def as_parts(message: Mapping[str, str], writes: bool) -> Mapping[str, Any]:
    """Return a message with its content as one part, for templates that need it."""
    if not writes:
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}
