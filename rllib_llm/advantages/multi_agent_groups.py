"""Group-relative advantages of several agents, in numpy.

Every estimator is
:func:`~rllib_llm.advantages.group_relative.group_advantages` with its own keys. A group
of one has no comparison and gets 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys
from rllib_llm.advantages.group_relative import group_advantages
from rllib_llm.losses._checks import (
    check_choice,
    check_finite,
    check_same_shape,
    check_vector,
)

MESSAGE_GROUPS = ("task", "agent", "turn")


def message_group_keys(
    group_by: str, tasks: np.ndarray, agents: np.ndarray, turns: np.ndarray
) -> np.ndarray:
    """Return the group of each message.

    ==========  =====================  ============================================
    group_by    equal                  paper
    ==========  =====================  ============================================
    ``task``    task                   GRPO (arXiv:2402.03300): one team, one group
    ``agent``   task, agent            Dr. MAS (arXiv:2602.08847)
    ``turn``    task, turn, agent      AT-GRPO (arXiv:2510.11062)
    ==========  =====================  ============================================

    Args:
        group_by: One of the names.
        tasks: Task of each message, integers or strings. [M]
        agents: Agent of each message. [M]
        turns: Round of each message. [M]

    Returns:
        Integers from 0. [M]

    Raises:
        ValueError: If the name is unknown or shapes differ.
    """
    check_choice("group_by", group_by, MESSAGE_GROUPS)
    tasks, agents, turns = map(combined_keys, (tasks, agents, turns))
    check_same_shape(tasks=tasks, agents=agents, turns=turns)
    # Every group is within a task: other tasks have other difficulties.
    columns = {"task": (), "agent": (agents,), "turn": (turns, agents)}[group_by]
    return combined_keys(tasks, *columns)


def message_group_advantages(
    returns: np.ndarray,
    *,
    tasks: np.ndarray,
    agents: np.ndarray,
    turns: np.ndarray,
    rollouts: np.ndarray,
    group_by: str = "agent",
    baseline: str = "mean",
    scale: str = "group",
    eps: float = 1e-6,
) -> np.ndarray:
    """Return each message's return relative to its group.

    Under ``"task"`` a rollout counts once, however many messages it has, so all
    messages of a rollout must have the same return. Under ``"agent"`` and ``"turn"``
    every message counts: an agent that was called twice in a rollout gives two
    samples to its mean and deviation, as in Dr. MAS.

    Dr. MAS's code gives the only message of a group its raw return; here it gets 0.
    Under ``"turn"`` a comparison is fair only if a group's messages were sampled in
    the same context, as AT-GRPO's branching ensures.

    Args:
        returns: Number by which each message is compared, e.g. the team's return. [M]
        tasks: Task of each message. [M]
        agents: Agent of each message. [M]
        turns: Round of each message. [M]
        rollouts: Episode of each message, unique over all tasks. [M]
        group_by: See :func:`message_group_keys`.
        baseline: See :func:`~rllib_llm.advantages.group_relative.group_advantages`.
        scale: See :func:`~rllib_llm.advantages.group_relative.group_advantages`.
        eps: See :func:`~rllib_llm.advantages.group_relative.group_advantages`.

    Returns:
        Advantages. [M]

    Raises:
        ValueError: If shapes differ, a return is not finite, a choice is unknown, or
            (under ``"task"``) a rollout has two returns or two tasks.
    """
    returns = np.asarray(returns, dtype=np.float64)
    check_finite("returns", returns, "Drop the failed episodes before this step.")
    keys = message_group_keys(group_by, tasks, agents, turns)
    rollouts = np.asarray(rollouts)
    check_same_shape(returns=returns, tasks=keys, rollouts=rollouts)
    if group_by != "task":
        return group_advantages(returns, keys, baseline=baseline, scale=scale, eps=eps)
    # One sample per rollout, else rollouts with many messages would dominate the mean.
    _, first, rollout = np.unique(rollouts, return_index=True, return_inverse=True)
    for name, column in (("return", returns), ("task", keys)):
        differs = np.flatnonzero(column != column[first][rollout])
        if differs.size:
            k = differs[0]
            raise ValueError(
                f"Rollout {rollouts[k]} has more than one {name} (message {k}). With "
                "group_by='task' all its messages must share one. Use "
                "group_by='agent', or give every episode its own rollout id."
            )
    advantages = group_advantages(
        returns[first], keys[first], baseline=baseline, scale=scale, eps=eps
    )
    return advantages[rollout]  # back to messages [M]


def broadcast_advantages(
    advantages: np.ndarray,
    rollouts: Sequence[Hashable] | np.ndarray,
    message_rollouts: Sequence[Hashable] | np.ndarray,
) -> np.ndarray:
    """Return every message's advantage, that of its main rollout.

    MATPO (arXiv:2510.04678): advantages are computed over the planner's rollouts only
    and assigned to each worker's messages. Flow-GRPO (AgentFlow, arXiv:2510.05592):
    the same for each of the planner's turns.

    Args:
        advantages: One per main rollout. [R]
        rollouts: Distinct ids of the main rollouts, integers or strings. [R]
        message_rollouts: Main rollout of each message. [M]

    Returns:
        Advantages. [M]

    Raises:
        ValueError: If shapes differ, an id is given twice, or a message's rollout is
            missing.
    """
    advantages, rollouts = np.asarray(advantages, np.float64), np.asarray(rollouts)
    check_vector("advantages", advantages)
    check_same_shape(advantages=advantages, rollouts=rollouts)
    place = {rollout: i for i, rollout in enumerate(rollouts.tolist())}
    rollout_of_message = np.asarray(message_rollouts).tolist()
    if len(place) < len(rollouts):
        raise ValueError(
            f"rollouts has {len(rollouts)} entries but {len(place)} distinct ones. "
            "Each main rollout must be listed once. Number rollouts over all tasks."
        )
    missing = sorted({str(r) for r in rollout_of_message if r not in place})
    if missing:
        raise ValueError(
            f"Messages belong to rollouts without an advantage: {missing[:5]}. Every "
            "message needs that of its main rollout. Pass it, or drop the messages."
        )
    return advantages[[place[rollout] for rollout in rollout_of_message]]


def align_invocations(
    rollouts: Sequence[Hashable] | np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Return indices that give each rollout ``count`` calls of a sub-agent.

    M-GRPO (arXiv:2511.13288): rollout k calls the sub-agent d_k times; drawing among
    its calls (dropping some, or repeating some after each was taken once) makes
    K * count samples, so that rollouts have equal weight in the sub-agent's group. A
    rollout without a call contributes none.

    Args:
        rollouts: Rollout of each call. [M]
        count: Samples per rollout, >= 1.
        rng: Random generator; the same state gives the same indices.

    Returns:
        Indices into the calls, ascending. [count * rollouts that have calls]

    Raises:
        ValueError: If ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"count is {count}. It must be at least 1. Use e.g. 4.")
    drawn = [np.zeros(0, dtype=np.int64)]
    keys = combined_keys(rollouts)
    for key in range(keys.max(initial=-1) + 1):
        # Shuffled before the cut, so that dropped calls are random ones.
        calls = rng.permutation(np.flatnonzero(keys == key))
        extra = rng.choice(calls, size=max(count - len(calls), 0))
        drawn.append(np.concatenate([calls[:count], extra]))
    # Sorted: the order of rows does not depend on the order of rollouts.
    return np.sort(np.concatenate(drawn))


def hierarchical_keys(
    tasks: np.ndarray, proposals: np.ndarray, is_proposer: np.ndarray
) -> np.ndarray:
    """Return the groups of proposers and solvers (hierarchical GRPO, prime-rl).

    A solver is compared with those that solved the same proposal, a proposer with the
    other proposals for its task. Pass the keys to
    :func:`~rllib_llm.advantages.group_relative.group_advantages`.

    Args:
        tasks: Task of each message's proposal. [M]
        proposals: Proposal made or solved by each message, unique over all tasks. [M]
        is_proposer: True for the proposer's message, False for a solver's. bool [M]

    Returns:
        Integers from 0. [M]

    Raises:
        ValueError: If shapes differ or ``is_proposer`` is not boolean.
    """
    is_proposer = np.asarray(is_proposer)
    if is_proposer.dtype != np.bool_:
        raise ValueError(
            f"is_proposer has dtype {is_proposer.dtype}. It must be bool. "
            "Pass is_proposer.astype(bool)."
        )
    task_keys, proposal_keys = combined_keys(tasks), combined_keys(proposals)
    check_same_shape(tasks=task_keys, proposals=proposal_keys, is_proposer=is_proposer)
    # is_proposer is part of the key: task 3 and proposal 3 are different groups.
    return combined_keys(is_proposer, np.where(is_proposer, task_keys, proposal_keys))
