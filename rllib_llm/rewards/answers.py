"""Rewards for the final answer.

The answer is the group of a regular expression in the last completion; the right ones
are ``info["gold_answers"]``, of which the best match counts.
"""

from __future__ import annotations

from collections.abc import Callable

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import MissingInfo, Trajectory
from rllib_llm.graders.texts import normalise, number_match, read_number, word_f1
from rllib_llm.rewards.texts import ANSWER, final_answer, gold_answers


@component(
    "reward", "exact_match", paper="Search-R1, Jin et al. 2025, arXiv:2503.09516"
)
def exact_match(
    trajectory: Trajectory, *, answer: str = ANSWER, missing: float = 0.0
) -> float:
    """1 if the answer is a right one after SQuAD's normalisation, else 0.

    Args:
        trajectory: What an agent did.
        answer: Regular expression whose group is the answer.
        missing: Paid where there is no answer.

    Returns:
        Reward of the last turn.
    """
    return _best(trajectory, answer, missing, _same)


@component("reward", "f1", paper="DeepResearcher, Zheng et al. 2025, arXiv:2504.03160")
def f1(trajectory: Trajectory, *, answer: str = ANSWER, missing: float = 0.0) -> float:
    """F1 of the answer's words and the best right one's, normalised as SQuAD does.

    Args:
        trajectory: What an agent did.
        answer: Regular expression whose group is the answer.
        missing: Paid where there is no answer.

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
    """1 if the answer contains a right one, word for word, else 0.

    Args:
        trajectory: What an agent did.
        answer: Regular expression whose group is the answer.
        missing: Paid where there is no answer.

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
    """Pay whether the answer is a number close to a right one.

    Args:
        trajectory: What an agent did.
        answer: Regular expression whose group is the answer.
        tolerance: Largest relative and absolute difference, >= 0.
        right: Paid if it is.
        wrong: Paid if it is not, or is no number.

    Returns:
        Reward of the last turn.
    """
    if tolerance < 0:
        raise ValueError(f"tolerance={tolerance} must be >= 0.")
    given, golds = final_answer(trajectory, answer), gold_answers(trajectory)
    numbers = [gold for gold in golds if read_number(gold) is not None]
    is_right = any(number_match(given or "", gold, tolerance) for gold in numbers)
    return right if is_right else wrong


@component("reward", "outcome", paper="MUA-RL, arXiv:2508.18669 (state of a database)")
def outcome(trajectory: Trajectory, *, key: str) -> float:
    """Pay a number of the environment's: passed tests, a state's match, a score.

    Args:
        trajectory: What an agent did.
        key: In the environment's ``metrics``, or in what it said last (``info``).

    Returns:
        Reward of the last turn; truth values count 1 and 0.
    """
    value = trajectory.metrics.get(key)
    value = trajectory.last_info(key) if value is None else value
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise MissingInfo(
            f"The environment's {key!r} is {value!r}, which is no number. Name another "
            "key, or write a reward that reads it."
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
    return max((score(given, gold) for gold in golds), default=0.0)


def _same(given: str, gold: str) -> float:
    return float(normalise(given) == normalise(gold))


def _covers(given: str, gold: str) -> float:
    return float(f" {normalise(gold)} " in f" {normalise(given)} ")
