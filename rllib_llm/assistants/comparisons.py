"""Comparisons of the rollouts of a task, each asked about in both orders."""

from __future__ import annotations

from collections.abc import Sequence

from rllib_llm.assistants.questions import Question, gold_text, messages_of, transcript
from rllib_llm.assistants.settings import Assistant
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.seeding import stable_seed


def ordered_pairs(
    trajectories: Sequence[Trajectory], opponents: int | None
) -> list[tuple[int, int]]:
    """Return the comparisons: indices of a first and a second trajectory.

    Those of one task and agent are compared, and each comparison is followed by the
    same one in the other order.

    Args:
        trajectories: Trajectories of whole groups.
        opponents: Number of the next rollouts that each is compared with, the first one
            following the last; None: all others.
    """
    members: dict[tuple[int, int], list[int]] = {}
    for index, trajectory in enumerate(trajectories):
        key = trajectory.task.group_id, trajectory.agent
        members.setdefault(key, []).append(index)
    pairs: list[tuple[int, int]] = []
    for group in members.values():
        count, seen = len(group), set[frozenset[int]]()
        for step in range(1, min(opponents or count, count - 1) + 1):
            for place, first in enumerate(group):
                second = group[(place + step) % count]
                # Half around the group both would name the same pair.
                if frozenset((first, second)) not in seen:
                    seen.add(frozenset((first, second)))
                    pairs += [(first, second), (second, first)]
    return pairs


def questions_about_pair(
    assistant: Assistant, first: Trajectory, second: Trajectory
) -> list[Question]:
    """Return the question whether the first is better, ``samples`` times."""
    return [_question(assistant, first, second, n) for n in range(assistant.samples)]


def compared_values(
    pairs: Sequence[tuple[int, int]], values: Sequence[float | None], count: int
) -> tuple[list[float | None], float]:
    """Return the value of each trajectory, and how often the orders contradict.

    The value of an answer is that of the first; the second has ``1 - value``. The
    value of a trajectory is the mean over its comparisons, in which a judge that always
    prefers the first has no effect.

    Args:
        pairs: As :func:`ordered_pairs` returns them. [P]
        values: Value of each answer, None where unreadable. [P]
        count: Number of trajectories.

    Returns:
        Values, None for trajectories without a readable comparison [N]; and the share
        of comparisons, of those that are readable in both orders, in which another one
        is better in the other order.
    """
    of_trajectories: list[list[float]] = [[] for _ in range(count)]
    for (first, second), value in zip(pairs, values, strict=True):
        if value is not None:
            of_trajectories[first].append(value)
            of_trajectories[second].append(1.0 - value)
    means = [sum(v) / len(v) if v else None for v in of_trajectories]
    both = [
        (one - 0.5) * (0.5 - other) < 0
        for one, other in zip(values[::2], values[1::2], strict=True)
        if one is not None and other is not None
    ]
    return means, sum(both) / len(both) if both else 0.0


def _question(
    assistant: Assistant, first: Trajectory, second: Trajectory, sample: int
) -> Question:
    sides = (first, second)
    rollouts = [trajectory.task.rollout for trajectory in sides]
    task = first.task
    seed = stable_seed(
        task.seed, task.group_id, rollouts, first.agent, assistant.name, sample
    )
    fields = {
        "task": first.observations[0],
        "first": transcript(first.observations, first.completions),
        "second": transcript(second.observations, second.completions),
    }
    if assistant.privileged:
        fields["gold"] = gold_text(first)
    is_better = first.episode_return > second.episode_return
    if first.episode_return == second.episode_return:
        is_better = bool(seed % 2)
    return Question(
        messages=messages_of(assistant, fields),
        replies=(*first.completions, *second.completions),
        turn=len(first) - 1,
        seed=seed,
        is_good=is_better if assistant.privileged else None,
    )
