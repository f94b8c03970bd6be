"""Step advantages of GiGPO: returns compared among turns with equal observations."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.group_relative import SCALES, group_advantages
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import TurnTable
from rllib_llm.losses._checks import check_choice, check_unit_interval


@component(
    "advantage_estimator", "anchor", paper="GiGPO, Feng et al. 2025, arXiv:2505.10978"
)
def anchor(
    table: TurnTable,
    *,
    discount: float = 0.95,
    similarity: float = 1.0,
    scale: str = "none",
) -> np.ndarray:
    """Compare the return from a turn on with that of turns with equal observations.

    Turns of an agent with equal observations form a cluster, within a task and over all
    its rollouts: ``A = G - mean of G over the cluster``, G the discounted return from
    the turn on. The only turn of a cluster gets 0. GiGPO is the sum of ``group`` and
    this.

    Args:
        table: Whole groups.
        discount: Discount per turn, in [0, 1].
        similarity: Least ratio of difflib at which texts of observations count as
            equal, in (0, 1]; 1: only equal ones. Below 1 it compares all pairs, which
            is slow. Pictures must be equal.
        scale: "none"; "group": divide by the cluster's standard deviation; "batch".

    Returns:
        Advantages. [M]
    """
    check_choice("scale", scale, SCALES)
    check_unit_interval(discount=discount, similarity=similarity)
    if similarity == 0:
        raise ValueError("similarity=0 puts all turns in one cluster. Use e.g. 0.95.")
    keys = anchors(table, similarity)  # [M]
    return group_advantages(table.to_go(discount), keys, scale=scale)


def anchors(table: TurnTable, similarity: float = 1.0) -> np.ndarray:
    """Return the cluster of each turn: equal pictures, similar texts. integers [M]"""
    # The text may be the same below every picture: the pictures must be equal, too.
    agents = combined_keys(
        table.task[table.owner], table.agent[table.owner], table.images
    )
    observations = table.observations
    if not observations:
        return agents
    if similarity == 1.0:
        return combined_keys(agents, observations)
    leaders = {
        agent: leader_of(
            {observations[i] for i in np.flatnonzero(agents == agent)}, similarity
        )
        for agent in np.unique(agents)
    }
    return combined_keys(
        agents, [leaders[s][t] for s, t in zip(agents, observations, strict=True)]
    )


def leader_of(texts: Iterable[str], similarity: float) -> dict[str, str]:
    """Return the first similar text of each, in sorted order."""
    leaders: list[str] = []
    leader_by_text = {}
    for text in sorted(texts):
        # SequenceMatcher caches its second sequence, so that one stays fixed here.
        match = SequenceMatcher(None, "", text, autojunk=False)
        for leader in leaders:
            match.set_seq1(leader)
            # quick_ratio() is a cheap upper bound of ratio().
            if match.quick_ratio() >= similarity and match.ratio() >= similarity:
                leader_by_text[text] = leader
                break
        else:
            leaders.append(text)
            leader_by_text[text] = text
    return leader_by_text
