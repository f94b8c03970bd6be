"""Filters that choose among the rollouts of a task."""

from __future__ import annotations

import numpy as np

from rllib_llm.advantages.keys import combined_keys
from rllib_llm.components.registry import component
from rllib_llm.data.turn_table import Trajectory, TurnTable
from rllib_llm.graders.patterns import matches
from rllib_llm.rewards.texts import ANSWER, check_pattern
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
    """Keep solved rollouts of least penalty and unsolved ones at random, in proportion.

    The penalty is the share of tool calls that failed (0.5 without any call) plus
    answers beyond the first per turn, at most 1. The paper oversamples twice the group
    size and keeps half, so ``group_size`` is what is sampled, ``keep`` of it is learnt.

    Args:
        table: Whole groups.
        keep: Share of each task's rollouts that stays, in (0, 1]; rounded, at least 1.
        least_per_class: Of the solved and of the unsolved, where there are so many.
        answer: Regular expression of an answer, with one group.
        seed: Of the choice among the unsolved, beside the task's.

    Returns:
        Which trajectories stay. bool [N]
    """
    if not 0 < keep <= 1:
        raise ValueError(f"keep={keep} must be in (0, 1].")
    if not isinstance(least_per_class, int) or least_per_class < 0:
        raise ValueError(f"least_per_class={least_per_class!r} must be an int >= 0.")
    check_pattern(answer, groups=1)
    kept = np.zeros(len(table), bool)
    for members in _members(table):
        of = [table.trajectories[i] for i in members]
        good = [i for i, t in zip(members, of, strict=True) if t.is_solved]
        bad = [i for i, t in zip(members, of, strict=True) if not t.is_solved]
        total = max(1, round(keep * len(members)))
        least_good = min(least_per_class, len(good))
        least_bad = min(least_per_class, len(bad))
        wanted = round(total * len(good) / len(members))
        num_good = min(max(wanted, least_good, total - len(bad)), len(good))
        num_good = max(min(num_good, total - least_bad), 0)
        penalty = {i: _penalty(table.trajectories[i], answer) for i in good}
        kept[sorted(good, key=penalty.__getitem__)[:num_good]] = True
        group = table.trajectories[members[0]].task
        rng = np.random.default_rng([seed, group.seed, group.group_id])
        kept[rng.permutation(np.array(bad, np.int64))[: total - num_good]] = True
    return kept


@component("filter", "priority", paper="RoRecomp, arXiv:2509.25958")
def priority(table: TurnTable, *, alpha: float = 0.5) -> np.ndarray:
    """Keep the shortest solved and the longest unsolved rollouts of each task.

    Length is sampled tokens. The paper keeps the rest for compensation batches; here
    the rest is left out.

    Args:
        table: Whole groups.
        alpha: Share of either class that stays, in (0, 1]; rounded up.

    Returns:
        Which trajectories stay. bool [N]
    """
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha={alpha} must be in (0, 1].")
    kept = np.zeros(len(table), bool)
    for members in _members(table):
        good = [i for i in members if table.trajectories[i].is_solved]
        bad = [i for i in members if not table.trajectories[i].is_solved]
        for of, sign in ((good, 1), (bad, -1)):
            ranked = sorted(of, key=lambda i, sign=sign: sign * table.tokens[i])
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
    """Keep what was solved, or what earned enough, or the best earners.

    Args:
        table: Whole groups.
        least: Smallest return that stays; None, with ``top`` None: what was solved.
        top: Share of the best returns that stays, in (0, 1]; ties stay.
        per_task: Whether ``top`` is a share of each task's rollouts.

    Returns:
        Which trajectories stay. bool [N]
    """
    if top is not None and not 0 < top <= 1:
        raise ValueError(f"top={top} must be in (0, 1], or None.")
    if top is not None and least is not None:
        raise ValueError(f"least={least} and top={top}: give one of them, not both.")
    if per_task and top is None:
        raise ValueError("per_task=True has a meaning with top only. Give top=0.5.")
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
    """Return each agent's rollouts of each task, by rollout and not as they came."""
    groups = combined_keys(table.task, table.agent)
    rollout = [t.task.rollout for t in table.trajectories]
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
