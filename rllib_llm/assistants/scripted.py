"""Scripted answers: components of kind ``answer``, functions of a question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from rllib_llm.assistants.function_pool import function_pool
from rllib_llm.assistants.pool import pool
from rllib_llm.assistants.questions import Question
from rllib_llm.components.registry import component
from rllib_llm.errors import ConfigError
from rllib_llm.schema import Fraction
from rllib_llm.seeding import stable_seed

__all__ = ["function_pool", "outcome", "pool"]


@component("answer", "outcome")
def outcome(
    question: Question,
    *,
    accuracy: Fraction = 1.0,
    errors: Literal["random", "by_text"] = "random",
) -> str:
    """Answer whether it went well, "yes" or "no", with a set share of errors.

    The right answer is "yes" for solved trajectories, for turns with a reward > 0, for
    turns that are the first to retrieve a document of ``info["gold_documents"]``, and
    for those with ``info["right_step"]`` > 0. It needs ``privileged``. Use it to
    measure what a judge's errors do.

    Args:
        question: The question.
        accuracy: Probability of the right answer.
        errors: "random": each answer is wrong by chance. "by_text": whether it is wrong
            depends on the agent's texts alone, so that a policy can learn which texts
            are judged wrongly.

    Returns:
        "yes" or "no".
    """
    if question.is_good is None:
        raise ConfigError(
            "The script 'outcome' tells what only the environment knows. Set "
            "the assistant's privileged to True."
        )
    seed = question.seed
    if errors == "by_text":
        seed = stable_seed("outcome", *question.replies)
    is_right = np.random.default_rng(seed).random() < accuracy
    return "yes" if question.is_good == is_right else "no"


@component("answer", "propose")
def propose(
    question: Question,
    *,
    ranges: Mapping[str, Sequence[int]],
    unreadable: Fraction = 0.0,
) -> str:
    """Propose options of a task at random, as a JSON object.

    It stands for a model that proposes tasks, to test the curriculum ``proposed``.

    Args:
        question: The question.
        ranges: Least and largest value of each option, whole numbers.
        unreadable: Probability of an answer without options.

    Returns:
        The options, or a text without any.
    """
    for name, bounds in ranges.items():
        if len(bounds) != 2 or bounds[0] > bounds[1]:
            raise ConfigError(
                f"The script 'propose' got ranges.{name}={list(bounds)!r}; it needs "
                "the least and the largest value. Use e.g. [3, 6]."
            )
    rng = np.random.default_rng(question.seed)
    if rng.random() < unreadable:
        return "I have no task."
    options = {k: int(rng.integers(low, high + 1)) for k, (low, high) in ranges.items()}
    return json.dumps(options)
