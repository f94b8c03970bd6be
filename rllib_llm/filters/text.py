"""Filters on what was said: cut off, repetitive, unreadable, wrong from a turn on."""

from __future__ import annotations

import numpy as np

from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.data.types import StopReason
from rllib_llm.rewards.form import check_ngram
from rllib_llm.rewards.texts import repeated_share


@component("filter", "incomplete", paper="SPEAR, arXiv:2509.22601", effect="mask")
def incomplete(table: TurnTable) -> np.ndarray:
    """Leave out trajectories that the task did not end: cut by turns, tokens or time.

    Args:
        table: Whole groups.

    Returns:
        Which trajectories stay. bool [N]
    """
    return np.array(
        [t.stop_reason is StopReason.TERMINATED for t in table.trajectories], bool
    )


@component("filter", "repetition", paper="SPEAR, arXiv:2509.22601", effect="mask")
def repetition(table: TurnTable, *, n: int = 4, most: float = 0.5) -> np.ndarray:
    """Leave out trajectories with a turn most of whose n-grams of words are repeats.

    Args:
        table: Whole groups.
        n: Words of an n-gram, >= 1.
        most: Largest share that stays, in [0, 1].

    Returns:
        Which trajectories stay. bool [N]
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
    """Leave out trajectories with a turn of too many characters that cannot be read.

    Those are replacement characters, control characters and unassigned ones.

    Args:
        table: Whole groups.
        most: Largest share of a turn's characters that stays, in [0, 1].

    Returns:
        Which trajectories stay. bool [N]
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
    """Learn up to the first failed turn only: what follows started from a bad place.

    A turn failed if it held no action, or its tool call failed.

    Args:
        table: Whole groups.
        and_error: Whether that turn itself is learnt from.

    Returns:
        Which turns stay. bool [M]
    """
    failed = [
        bad or bool(info.get("tool_error"))
        for t in table.trajectories
        for bad, info in zip(t.invalid, t.infos or [{}] * len(t), strict=True)
    ]
    parts = table.split(np.array(failed, bool))
    kept = [(np.cumsum(part) - (part if and_error else 0)) == 0 for part in parts]
    return np.concatenate([*kept, np.zeros(0, bool)])


def _check_share(most: float) -> None:
    if not 0 <= most <= 1:
        raise ValueError(f"most={most} must be in [0, 1].")


def _unreadable_share(text: str) -> float:
    bad = sum(c == "\ufffd" or not (c.isprintable() or c.isspace()) for c in text)
    return bad / max(len(text), 1)
