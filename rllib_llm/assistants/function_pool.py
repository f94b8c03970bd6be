"""Scripted editor of functions: it chooses sources from a pool."""

from __future__ import annotations

import re

from rllib_llm.assistants.pool import best
from rllib_llm.assistants.questions import Question
from rllib_llm.components.registry import component
from rllib_llm.errors import ConfigError

_NAME = re.compile(r"^def (\w+)", re.MULTILINE)


@component("answer", "function_pool")
def function_pool(question: Question, *, candidates: list[str]) -> str:
    """Write operations on functions, in a language model's place.

    It removes the functions that no reply names, and adds the source of the pool with
    the most words of observations and of solved replies and the fewest of failed ones,
    by chance among equals. A source whose name is in the set revises that function;
    sources that are in the set, were refused or were rolled back are not written again.

    Args:
        question: The question.
        candidates: The pool.

    Returns:
        The operations; an empty answer if the pool is used up.
    """
    if not question.trajectories:
        raise ConfigError(
            "The script 'function_pool' writes operations for rollouts.prompt_text. "
            "Set the assistant's parse.text, e.g. to '(?s)(.+)'."
        )
    sources = [text for text in question.texts if not text.startswith("#")]
    names = {name for text in sources for name in _NAME.findall(text)}
    replies = [c for t in question.trajectories for c in t.completions]
    unused = sorted(n for n in names if not any(n in reply for reply in replies))
    lines = [f"remove_function {name}" for name in unused]
    left = [c.strip() for c in candidates]
    left = [c for c in left if not any(c in text for text in question.texts)]
    if left:
        source = best(left, question)
        is_member = not (names - set(unused)).isdisjoint(_NAME.findall(source))
        lines += ["revise_function" if is_member else "add_function", source]
    return "\n".join(lines)
