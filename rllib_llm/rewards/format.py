"""Rewards for the form of completions: format rules, length, repetition."""

from __future__ import annotations

from collections.abc import Mapping

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.graders.patterns import has_match
from rllib_llm.losses._checks import check_choice
from rllib_llm.rewards.text_features import (
    ANSWER,
    check_pattern,
    final_answer,
    overlong_penalty,
    repeated_share,
)
from rllib_llm.rewards.tools import calls

AGGREGATES = ("mean", "sum")


@component(
    "reward", "well_formed", paper="ReSearch, Chen et al. 2025, arXiv:2503.19470"
)
def well_formed(
    trajectory: Trajectory, *, answer: str | None = ANSWER, every: str | None = None
) -> float:
    """Return 1 if every turn has a valid action and the last one an answer, else 0.

    Args:
        trajectory: The agent's trajectory.
        answer: Regular expression whose group is the answer; None needs no answer.
        every: Regular expression that each completion must match; None means no rule.

    Returns:
        Reward of the last turn.
    """
    answered = answer is None or final_answer(trajectory, answer) is not None
    is_good = answered and not any(trajectory.invalid)
    if every is not None:
        check_pattern(every)
        is_good = is_good and all(has_match(every, c) for c in trajectory.completions)
    return float(is_good)


@component(
    "reward", "rubric", paper="PPR, arXiv:2509.25598 (a judge's place, by rules)"
)
def rubric(
    trajectory: Trajectory,
    *,
    rules: Mapping[str, float],
    turns: str = "all",
    aggregate: str = "mean",
) -> list[float]:
    """Score each turn by the weighted share of the rules that it follows.

    The rules replace the papers' judge, which gives a score in [0, 1].

    Args:
        trajectory: The agent's trajectory.
        rules: Regular expressions that a good completion matches, with weights > 0.
        turns: Turns to score: "all", or "tool" for turns that called a tool.
        aggregate: "mean" divides each score by the number of scored turns, so that
            more turns do not give a higher return; "sum" does not divide.

    Returns:
        Reward of each turn; their sum is in [0, 1] under "mean". [H]
    """
    if not isinstance(rules, Mapping) or not rules or min(rules.values()) <= 0:
        raise ValueError(
            f"rules={rules!r} must be patterns with weights > 0. Use e.g. "
            "{'<think>.+</think>': 1.0}."
        )
    if turns not in ("all", "tool"):
        raise ValueError(f"turns={turns!r} must be 'all' or 'tool'. Use 'all'.")
    for rule in rules:
        check_pattern(rule)
    check_choice("aggregate", aggregate, AGGREGATES)
    total = sum(rules.values())
    scores = [
        sum(w for rule, w in rules.items() if has_match(rule, text)) / total
        for text in trajectory.completions
    ]
    if turns == "tool":
        named = [called for called, _ in calls(trajectory)]
        scores = [s if n else 0.0 for s, n in zip(scores, named, strict=True)]
        count = sum(map(bool, named))
    else:
        count = len(scores)
    return [s / count for s in scores] if aggregate == "mean" and count else scores


@component("reward", "overlong", paper="DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 13")
def overlong(
    trajectory: Trajectory, *, longest: int, buffer: int, penalty: float = 1.0
) -> float:
    """Penalise length: 0 up to ``longest - buffer`` tokens, then linearly increasing.

    Only sampled tokens count, not those of the environment or of tools.

    Args:
        trajectory: The agent's trajectory.
        longest: Length in tokens with the full penalty.
        buffer: Range in tokens over which the penalty increases, in [1, longest].
        penalty: The full penalty, >= 0.

    Returns:
        Reward of the last turn, in [-penalty, 0].
    """
    if not 1 <= buffer <= longest:
        raise ValueError(
            f"buffer={buffer} must be in [1, longest={longest}], in tokens. Lower it."
        )
    _check_penalty(penalty)
    # Over all turns: the limit is one of the episode, not of a turn.
    return penalty * overlong_penalty(sum(trajectory.num_tokens), longest, buffer)


@component("reward", "repetition", paper="Yeo et al. 2025, arXiv:2502.03373 (n-grams)")
def repetition(
    trajectory: Trajectory, *, n: int = 4, penalty: float = 1.0
) -> list[float]:
    """Penalise each turn by its share of repeated word n-grams.

    Args:
        trajectory: The agent's trajectory.
        n: Number of words of an n-gram, >= 1.
        penalty: Penalty of a share of 1, >= 0.

    Returns:
        Reward of each turn, in [-penalty, 0]. [H]
    """
    check_ngram(n)
    _check_penalty(penalty)
    return [-penalty * repeated_share(text, n) for text in trajectory.completions]


def check_ngram(n: int) -> None:
    """Check that ``n`` is an integer >= 1.

    Raises:
        ValueError: If it is not.
    """
    # bool first: True is an int in Python.
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r} must be a number of words >= 1. Use e.g. 4.")


def _check_penalty(penalty: float) -> None:
    if penalty < 0:
        raise ValueError(
            f"penalty={penalty} must be >= 0, because it is subtracted. Drop the sign."
        )
