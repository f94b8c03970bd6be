"""Rewards for form and length: well-formed, not too long, not repetitive."""

from __future__ import annotations

from collections.abc import Mapping

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.graders.patterns import has_match
from rllib_llm.losses._checks import check_choice
from rllib_llm.rewards.texts import (
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
    """1 if every turn held an action and the last one an answer, else 0.

    Args:
        trajectory: What an agent did.
        answer: Regular expression whose group is the answer; None: none is needed.
        every: Regular expression that each completion must contain; None: none.

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
    """Score turns by rules: the weight of those a turn follows, of all rules' weight.

    It stands where the papers ask a judge for a score in [0, 1].

    Args:
        trajectory: What an agent did.
        rules: Regular expressions that a good completion contains, with weights > 0.
        turns: Which are scored: "all", or "tool": those that called a tool.
        aggregate: "mean": each scored turn is paid its score over their number, so that
            more turns do not earn more; "sum": its score, which has no bound.

    Returns:
        Reward of each turn; their sum is in [0, 1] under "mean". [H]
    """
    if not isinstance(rules, Mapping) or not rules or min(rules.values()) <= 0:
        raise ValueError(
            f"rules={rules!r} must be patterns with weights > 0, e.g. "
            "{'<think>.+</think>': 1.0}."
        )
    if turns not in ("all", "tool"):
        raise ValueError(f"turns={turns!r} must be 'all' or 'tool'.")
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
    """Punish length softly: 0 up to ``longest - buffer`` tokens, from there linearly.

    Only sampled tokens count, never those of the environment or of tools.

    Args:
        trajectory: What an agent did.
        longest: Tokens at which the penalty is full.
        buffer: Tokens over which it grows, in [1, longest].
        penalty: The full one, >= 0.

    Returns:
        Reward of the last turn, in [-penalty, 0].
    """
    if not 1 <= buffer <= longest:
        raise ValueError(
            f"buffer={buffer} must be in [1, longest={longest}], in tokens."
        )
    if penalty < 0:
        raise ValueError(f"penalty={penalty} must be >= 0; it is subtracted.")
    return penalty * overlong_penalty(sum(trajectory.num_tokens), longest, buffer)


@component("reward", "repetition", paper="Yeo et al. 2025, arXiv:2502.03373 (n-grams)")
def repetition(
    trajectory: Trajectory, *, n: int = 4, penalty: float = 1.0
) -> list[float]:
    """Punish each turn by the share of its n-grams of words that repeat earlier ones.

    Args:
        trajectory: What an agent did.
        n: Words of an n-gram, >= 1.
        penalty: At a share of 1, >= 0.

    Returns:
        Reward of each turn, in [-penalty, 0]. [H]
    """
    check_ngram(n)
    if penalty < 0:
        raise ValueError(f"penalty={penalty} must be >= 0; it is subtracted.")
    return [-penalty * repeated_share(text, n) for text in trajectory.completions]


def check_ngram(n: int) -> None:
    """Refuse numbers of words that are none."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r} must be a number of words >= 1, e.g. 4.")
