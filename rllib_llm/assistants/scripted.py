"""Scripted answers: components of kind ``answer``, functions of a question."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rllib_llm.assistants.pool import pool
from rllib_llm.assistants.questions import Question
from rllib_llm.components.registry import component
from rllib_llm.errors import ConfigError
from rllib_llm.schema import Fraction
from rllib_llm.seeding import stable_seed

__all__ = ["outcome", "pool"]


@component("answer", "outcome")
def outcome(
    question: Question,
    *,
    accuracy: Fraction = 1.0,
    errors: Literal["random", "by_text"] = "random",
) -> str:
    """Answer whether it went well, "yes" or "no", with a set share of errors.

    The right answer is "yes" for solved trajectories, for turns with a reward > 0, and
    for turns that are the first to retrieve a document of ``info["gold_documents"]``.
    It needs ``privileged``. Use it to measure what a judge's errors do.

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
