"""Rewards for the final answer.

The answer is the group of a regular expression in the last completion. The correct
answers are ``info["gold_answers"]``; the best match counts.
"""

from __future__ import annotations

from collections.abc import Callable

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import MissingInfo, Trajectory
from rllib_llm.graders.short_answers import (
    normalise,
    number_match,
    read_number,
    word_f1,
)
from rllib_llm.rewards.text_features import ANSWER, final_answer, gold_answers


@component(
    "reward", "exact_match", paper="Search-R1, Jin et al. 2025, arXiv:2503.09516"
)
def exact_match(
    trajectory: Trajectory, *, answer: str = ANSWER, missing: float = 0.0
) -> float:
    """Return 1 if the answer is correct after SQuAD's normalisation, else 0.

    Args:
        trajectory: The agent's trajectory.
        answer: Regular expression whose group is the answer.
        missing: Reward if there is no answer.

    Returns:
        Reward of the last turn.
    """
    return _best(trajectory, answer, missing, _same)


@component("reward", "f1", paper="DeepResearcher, Zheng et al. 2025, arXiv:2504.03160")
def f1(trajectory: Trajectory, *, answer: str = ANSWER, missing: float = 0.0) -> float:
    """Return the word F1 of the answer and the closest correct answer, as in SQuAD.

    Args:
        trajectory: The agent's trajectory.
        answer: Regular expression whose group is the answer.
        missing: Reward if there is no answer.

    Returns:
        Reward of the last turn, in [0, 1] or ``missing``.
    """
    return _best(trajectory, answer, missing, word_f1)


@component(
    "reward", "cover_match", paper="R1-Searcher, Song et al. 2025, arXiv:2503.05592"
)
def cover_match(
    trajectory: Trajectory, *, answer: str = ANSWER, missing: float = 0.0
) -> float:
    """Return 1 if the answer contains the words of a correct answer, else 0.

    Args:
        trajectory: The agent's trajectory.
        answer: Regular expression whose group is the answer.
        missing: Reward if there is no answer.

    Returns:
        Reward of the last turn.
    """
    return _best(trajectory, answer, missing, _covers)


@component("reward", "accuracy", paper="ReTool, Feng et al. 2025, arXiv:2504.11536")
def accuracy(
    trajectory: Trajectory,
    *,
    answer: str = ANSWER,
    tolerance: float = 1e-6,
    right: float = 1.0,
    wrong: float = 0.0,
) -> float:
    """Reward answers that are numbers close to a correct number.

    Args:
        trajectory: The agent's trajectory.
        answer: Regular expression whose group is the answer.
        tolerance: Maximum relative and absolute difference, >= 0.
        right: Reward of a close answer.
        wrong: Reward of any other answer.

    Returns:
        Reward of the last turn.
    """
    if tolerance < 0:
        raise ValueError(f"tolerance={tolerance} must be >= 0. Use e.g. 1e-6.")
    given, golds = final_answer(trajectory, answer), gold_answers(trajectory)
    numbers = [gold for gold in golds if read_number(gold) is not None]
    is_right = any(number_match(given or "", gold, tolerance) for gold in numbers)
    return right if is_right else wrong


@component("reward", "outcome", paper="MUA-RL, arXiv:2508.18669 (state of a database)")
def outcome(trajectory: Trajectory, *, key: str) -> float:
    """Return a value of the environment as reward: passed tests, a match, a score.

    Args:
        trajectory: The agent's trajectory.
        key: Key in the environment's ``metrics``, or in its last ``info``.

    Returns:
        Reward of the last turn; True counts 1 and False 0.
    """
    # Metrics first: they are those of the whole episode.
    value = trajectory.metrics.get(key)
    value = trajectory.last_info(key) if value is None else value
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise MissingInfo(
            f"The environment's {key!r} is {value!r}; the reward 'outcome' needs a "
            "number. Use another key, or write a reward function for this value."
        ) from error


def _best(
    trajectory: Trajectory,
    answer: str,
    missing: float,
    score: Callable[[str, str], float],
) -> float:
    given, golds = final_answer(trajectory, answer), gold_answers(trajectory)
    if given is None:
        return missing
    # The best match: several texts may be correct.
    return max((score(given, gold) for gold in golds), default=0.0)


def _same(given: str, gold: str) -> float:
    return float(normalise(given) == normalise(gold))


def _covers(given: str, gold: str) -> float:
    # With spaces, so that whole words match: "art" is not in "party".
    return float(f" {normalise(gold)} " in f" {normalise(given)} ")
