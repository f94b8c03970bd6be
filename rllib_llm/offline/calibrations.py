"""Pairs of continuations after a reply of low value: a solved and a failed one."""

from __future__ import annotations

from typing import Any

import numpy as np

from rllib_llm.advantages.column_keys import key_means
from rllib_llm.advantages.fork_trees import replies_of
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.envs.go_to import go_to
from rllib_llm.offline.corrections import (
    Row,
    context,
    has_texts,
    messages_by_turn,
)
from rllib_llm.offline.played_replies import play_on


def calibrations(env: Any, table: TurnTable, sentence: str, margin: float) -> list[Row]:
    """Return a pair for each deviated reply that an episode recovered from.

    The value of a reply is the mean return of the episodes that contain it, the
    Monte-Carlo step reward of STeCa (Wang et al. 2025, arXiv:2502.14276). A reply
    deviates if the best value at its place is higher by more than the margin. Of the
    episodes that went on from it, the shortest solved one is chosen and the first
    failed one is rejected. The chosen one reflects before its next reply, and the
    environment plays it again with this text; it is left out if the task is not solved
    then. What comes before, the deviated reply included, is context.

    Args:
        env: An environment of the episodes' kind.
        table: Whole groups of one agent's forked episodes.
        sentence: The reflection, which begins the reply after the deviated one.
        margin: Difference of values above which a reply deviates, in units of the
            return.

    Returns:
        Rows of data files with ``chosen`` and ``rejected``, lists of messages.

    Raises:
        EnvContractError: If the environment returns other texts than before.
    """
    rows = []
    for members, turn in deviations(table, margin):
        # Those whose episode ended with the deviated reply have no continuation.
        after = [t for t in members if len(t) > turn + 1]
        solved = sorted((t for t in after if t.is_solved), key=len)
        failed = [t for t in after if not t.is_solved]
        if not solved or not failed:
            continue
        chosen = _recovered(env, solved[0], turn, sentence)
        if chosen is None:
            continue
        rejected = context(failed[0], turn + 1)
        for part in messages_by_turn(failed[0])[turn + 1 :]:
            rejected += part
        if has_texts(chosen) and has_texts(rejected):
            rows.append({"chosen": chosen, "rejected": rejected})
    return rows


def deviations(table: TurnTable, margin: float) -> list[tuple[list[Trajectory], int]]:
    """Return the replies whose value is lower than the best at their place.

    Args:
        table: Whole groups of one agent's forked episodes.
        margin: Difference of values that is exceeded, in units of the return.

    Returns:
        The episodes that contain each such reply, and the number of its turn.
    """
    if not len(table.owner):
        return []
    places, replies = replies_of(table)
    values = key_means(table.returns[table.owner], replies)[replies]
    best = np.full(places.max() + 1, -np.inf)
    np.maximum.at(best, places, values)
    low = np.flatnonzero(best[places] - values > margin)
    by_reply: dict[int, tuple[list[Trajectory], int]] = {}
    for index in low.tolist():
        members, _ = by_reply.setdefault(
            int(replies[index]), ([], int(table.turn[index]))
        )
        members.append(table.trajectories[table.owner[index]])
    return list(by_reply.values())


def _recovered(
    env: Any, solved: Trajectory, turn: int, sentence: str
) -> list[Row] | None:
    """Play an episode again, with a reflection after a turn; None if it fails."""
    texts, start = solved.completions, turn + 1
    go_to(
        env,
        seed=solved.task.seed,
        options=dict(solved.task.options),
        actions=texts[:start],
        observations=solved.observations,
    )
    after = play_on(env, [f"{sentence} {texts[start]}", *texts[start + 1 :]])
    if after is None:
        return None
    return [*context(solved, start), *messages_by_turn(solved)[start][:-1], *after]
