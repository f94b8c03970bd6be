"""Filters on episode ends and completions: cut off, repetitive, unreadable, failed."""

from __future__ import annotations

import re

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import StopReason
from rllib_llm.rewards.format import check_ngram
from rllib_llm.rewards.text_features import check_pattern, repeated_share


@component("filter", "incomplete", paper="SPEAR, arXiv:2509.22601", effect="mask")
def incomplete(table: TurnTable) -> np.ndarray:
    """Remove trajectories that did not terminate: limits on turns, tokens or time.

    Args:
        table: Whole groups.

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    return np.array(
        [t.stop_reason is StopReason.TERMINATED for t in table.trajectories], bool
    )


@component("filter", "repetition", paper="SPEAR, arXiv:2509.22601", effect="mask")
def repetition(table: TurnTable, *, n: int = 4, most: float = 0.5) -> np.ndarray:
    """Remove trajectories with a turn of too many repeated word n-grams.

    Args:
        table: Whole groups.
        n: Number of words of an n-gram, >= 1.
        most: Maximum share of repeated n-grams, in [0, 1].

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    check_ngram(n)
    _check_share(most)
    return np.array(
        [
            all(repeated_share(text, n) <= most for text in t.completions)
            for t in table.trajectories
        ],
        bool,
    )


@component("filter", "unreadable", paper="SPEAR, arXiv:2509.22601", effect="mask")
def unreadable(table: TurnTable, *, most: float = 0.1) -> np.ndarray:
    """Remove trajectories with a turn of too many unreadable characters.

    These are replacement characters, control characters and unassigned ones.

    Args:
        table: Whole groups.
        most: Maximum share of unreadable characters in a turn, in [0, 1].

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    _check_share(most)
    return np.array(
        [
            all(_unreadable_share(text) <= most for text in t.completions)
            for t in table.trajectories
        ],
        bool,
    )


@component(
    "filter",
    "first_error",
    paper="cf. Lightman et al., arXiv:2305.20050",
    effect="turns",
)
def first_error(table: TurnTable, *, and_error: bool = True) -> np.ndarray:
    """Keep turns up to the first failed turn, because later ones start from an error.

    A turn has failed if it is invalid or its tool call failed.

    Args:
        table: Whole groups.
        and_error: Whether to keep the failed turn itself.

    Returns:
        Whether to keep each turn. bool [M]
    """
    failed = [
        bad or bool(info.get("tool_error"))
        for t in table.trajectories
        for bad, info in zip(t.invalid, t.infos or [{}] * len(t), strict=True)
    ]
    # Failed turns up to each turn, with or without the turn itself.
    parts = table.split(np.array(failed, bool))
    kept = [(np.cumsum(part) - (part if and_error else 0)) == 0 for part in parts]
    return np.concatenate([*kept, np.zeros(0, bool)])  # valid without trajectories


@component(
    "filter",
    "turns_with",
    paper="cf. ATLaS, arXiv:2503.02197 (critical steps)",
    effect="turns",
)
def turns_with(
    table: TurnTable, *, observation: str = "", completion: str = "", last: bool = True
) -> np.ndarray:
    """Keep turns whose texts match a pattern: a rule for the steps that matter.

    Args:
        table: Whole groups.
        observation: Regular expression searched in the observation before the turn.
        completion: Regular expression searched in the turn.
        last: Whether the last turn of a trajectory is always kept.

    Returns:
        Whether to keep each turn: if both match. bool [M]
    """
    check_pattern(observation)
    check_pattern(completion)
    kept = [
        (last and number == len(t) - 1)
        or (
            re.search(observation, before, re.DOTALL) is not None
            and re.search(completion, text, re.DOTALL) is not None
        )
        for t in table.trajectories
        for number, (before, text) in enumerate(
            zip(t.observations, t.completions, strict=True)
        )
    ]
    return np.array(kept, bool)


@component(
    "filter",
    "turn_info",
    paper="SSRL, arXiv:2508.10874 (own results are not trained)",
    effect="turns",
)
def turn_info(
    table: TurnTable, *, key: str, value: str | float | bool | None = None
) -> np.ndarray:
    """Keep turns after which the environment's info has a value.

    Args:
        table: Whole groups.
        key: Key of the info, e.g. "written_result".
        value: The value that is kept. A turn whose info lacks the key has None.

    Returns:
        Whether to keep each turn. bool [M]
    """
    kept = [
        # Of one type: True equals 1 in Python.
        type(given) is type(value) and given == value
        for t in table.trajectories
        for given in t.info_per_turn(key, None)
    ]
    return np.array(kept, bool)


def _check_share(most: float) -> None:
    if not 0 <= most <= 1:
        raise ValueError(f"most={most} must be in [0, 1]. Use e.g. 0.5.")


def _unreadable_share(text: str) -> float:
    bad = sum(c == "\ufffd" or not (c.isprintable() or c.isspace()) for c in text)
    return bad / max(len(text), 1)
