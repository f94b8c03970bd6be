"""Checks that a tokenizer and a chat template preserve observations."""

from __future__ import annotations

from collections.abc import Iterator

from rllib_llm.envs.check_episodes import Subject


def check_context(subject: Subject) -> Iterator[str]:
    """Check that conversations fit into the context."""
    limit = subject.max_context_tokens
    if subject.tokenizer is None or limit is None:
        return
    longest, play = max(
        ((subject.count_tokens(p), p) for p in subject.plays), key=lambda x: x[0]
    )
    if longest > limit:
        yield (
            f"The conversation reached {longest} tokens ({play.where}), but "
            f"max_context_tokens={limit}. Shorten the observations, lower max_turns, "
            "or raise the limit; completions of a model may be longer still."
        )


def check_round_trip(subject: Subject) -> Iterator[str]:
    """Check that the tokenizer and the chat template preserve every character."""
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return
    for text in subject.texts():
        back = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        if back != text:
            yield (
                f"The tokenizer turned the observation {text!r} into {back!r}; it must "
                "be unchanged. Use a byte-level tokenizer, or avoid the "
                "characters that are lost."
            )
            return
        if text not in subject.as_chat([{"role": "user", "content": text}]):
            yield (
                f"The chat template does not show the observation {text!r} unchanged. "
                "Templates often strip spaces and line ends: do not start or end "
                "observations with them."
            )
            return
