"""Filters that select among the rollouts of a task."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.graders.patterns import matches
from rllib_llm.rewards.text_features import ANSWER, check_pattern
from rllib_llm.rewards.tools import calls


@component("filter", "roc", paper="GRPO-RoC, rStar2-Agent, arXiv:2508.20722, sec. 3.2")
def roc(
    table: TurnTable,
    *,
    keep: float = 0.5,
    least_per_class: int = 1,
    answer: str = ANSWER,
    seed: int = 0,
) -> np.ndarray:
    """Keep solved rollouts with the lowest penalty and random unsolved ones.

    Both classes keep their proportion. The penalty is the share of failed tool calls
    (0.5 without calls) plus the answers beyond the first per turn, at most 1. The paper
    oversamples twice the group size and keeps half, so ``group_size`` is the number of
    sampled rollouts, and ``keep`` of them are trained on.

    Args:
        table: Whole groups.
        keep: Share of each task's rollouts to keep, in (0, 1]; rounded, at least 1.
        least_per_class: Minimum number of solved and of unsolved rollouts, if there are
            as many.
        answer: Regular expression of an answer, with one group.
        seed: Seed of the choice among unsolved rollouts, combined with the task's.

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep={keep} must be in (0, 1]. Use e.g. 0.5.")
    if not isinstance(least_per_class, int) or least_per_class < 0:
        raise ValueError(
            f"least_per_class={least_per_class!r} must be an int >= 0. Use e.g. 1."
        )
    check_pattern(answer, groups=1)
    kept = np.zeros(len(table), bool)
    for members in _members(table):
        of = [table.trajectories[i] for i in members]
        good = [i for i, t in zip(members, of, strict=True) if t.is_solved]
        bad = [i for i, t in zip(members, of, strict=True) if not t.is_solved]
        total = max(1, round(keep * len(members)))
        least_good = min(least_per_class, len(good))
        least_bad = min(least_per_class, len(bad))
        # The proportional number of solved rollouts, raised to their minimum and to the
        # number that is needed if there are too few unsolved ones; then lowered for the
        # minimum of unsolved ones.
        wanted = round(total * len(good) / len(members))
        num_good = min(max(wanted, least_good, total - len(bad)), len(good))
        num_good = max(min(num_good, total - least_bad), 0)
        penalty = {i: _penalty(table.trajectories[i], answer) for i in good}
        # A stable sort: rollouts with equal penalties are kept in their order.
        kept[sorted(good, key=penalty.__getitem__)[:num_good]] = True
        # A generator per task: the choice does not depend on the other tasks of the
        # batch.
        group = table.trajectories[members[0]].task
        rng = np.random.default_rng([seed, group.seed, group.group_id])
        # int64 also without unsolved rollouts: an empty float array is not an index.
        kept[rng.permutation(np.array(bad, np.int64))[: total - num_good]] = True
    return kept


@component("filter", "priority", paper="RoRecomp, arXiv:2509.25958")
def priority(table: TurnTable, *, alpha: float = 0.5) -> np.ndarray:
    """Keep the shortest solved and the longest unsolved rollouts of each task.

    Length is the number of sampled tokens. With ``effect: mask`` and
    ``replay.keep_masked`` the others return in compensation batches, as in the paper.

    Args:
        table: Whole groups.
        alpha: Share of each class to keep, in (0, 1]; rounded up.

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha={alpha} must be in (0, 1]. Use e.g. 0.5.")
    kept = np.zeros(len(table), bool)
    for members in _members(table):
        good = [i for i in members if table.trajectories[i].is_solved]
        bad = [i for i in members if not table.trajectories[i].is_solved]
        for of, sign in ((good, 1), (bad, -1)):
            ranked = sorted(of, key=lambda i: table.tokens[i], reverse=sign < 0)
            # The product may be rounded up (0.55 * 100 > 55), which would keep one
            # more.
            kept[ranked[: int(np.ceil(alpha * len(of) - 1e-9))]] = True
    return kept


@component(
    "filter", "success", paper="filtered behaviour cloning, e.g. arXiv:2501.12948"
)
def success(
    table: TurnTable,
    *,
    least: float | None = None,
    top: float | None = None,
    per_task: bool = False,
) -> np.ndarray:
    """Keep solved trajectories, those with a minimum return, or the best ones.

    Args:
        table: Whole groups.
        least: Minimum return; None, with ``top`` None, keeps solved trajectories.
        top: Share of the best returns to keep, in (0, 1]; ties are kept.
        per_task: Whether ``top`` is a share of each task's rollouts.

    Returns:
        Whether to keep each trajectory. bool [N]
    """
    if top is not None and not 0 < top <= 1:
        raise ValueError(f"top={top} must be in (0, 1], or None. Use e.g. 0.5.")
    if top is not None and least is not None:
        raise ValueError(
            f"least={least} and top={top} exclude each other. Remove one of them."
        )
    if per_task and top is None:
        raise ValueError("per_task=True needs top. Set e.g. top=0.5.")
    if least is not None:
        return table.returns >= least
    if top is None:
        return np.array([t.is_solved for t in table.trajectories], bool)
    kept = np.zeros(len(table), bool)
    every = np.arange(len(table))
    for members in _members(table) if per_task else [every] * bool(len(table)):
        returns = table.returns[members]
        rank = int(np.ceil(top * len(members) - 1e-9))
        kept[members] = returns >= np.sort(returns)[-rank]
    return kept


def _members(table: TurnTable) -> list[np.ndarray]:
    """Return the row indices of each agent's rollouts of each task, by rollout."""
    # Sorted, so that random choices do not depend on the order of delivery.
    groups = combined_keys(table.task, table.agent)
    rollout = np.array([t.task.rollout for t in table.trajectories])
    order = np.lexsort((table.episode, rollout, groups))
    return (
        np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
        if len(order)
        else []
    )


def _penalty(trajectory: Trajectory, answer: str) -> float:
    made = [failed for called, failed in calls(trajectory) if called]
    errors = sum(made) / len(made) if made else 0.5
    answers = sum(len(matches(answer, text)) for text in trajectory.completions)
    return errors + min(max(answers - 1, 0) / max(len(trajectory), 1), 1.0)
