"""Selection of the episodes of an iteration for transcripts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_llm.data.episode_data import episode_data

if TYPE_CHECKING:
    from rllib_llm.types import Episode

BEST, WORST, RANDOM, GROUP_MATE = "best", "worst", "random", "group"


def groups_of(episodes: Sequence[Any]) -> list[list[Any]]:
    """Return the rollouts of each task; an episode without a task is its own group."""
    groups: dict[Any, list[Any]] = {}
    for place, episode in enumerate(episodes):
        task = episode_data(episode).task
        groups.setdefault(task.group_id if task else (place,), []).append(episode)
    return list(groups.values())


def select_episodes(episodes: Sequence[Any], count: int) -> Iterator[tuple[str, Any]]:
    """Yield up to ``count`` pairs of reason (best, worst, random) and episode.

    The random choice depends only on the episodes, so that runs are reproducible.
    """
    returns = [e.get_return() for e in episodes]
    for why, index in _pick(returns, [_seed(e) for e in episodes], count):
        yield why, episodes[index]


def select_groups(
    groups: Sequence[Sequence[Any]], count: int, max_group_mates: int
) -> Iterator[tuple[str, Any]]:
    """Yield pairs of reason and episode of up to ``count`` groups.

    Zero-variance groups have zero advantages, so they are used only if there are not
    enough others.

    The best, worst or first episode of a group has the reason for its selection, the
    others are group mates, in the order of their rollouts. A group above
    ``max_group_mates`` is thinned out evenly over its returns.
    """
    unequal = [g for g in groups if len({e.get_return() for e in g}) > 1]
    equal = [g for g in groups if len({e.get_return() for e in g}) == 1]
    groups = unequal + equal[: max(0, count - len(unequal))]
    means = [float(np.mean([e.get_return() for e in group])) for group in groups]
    for why, index in _pick(means, [_seed(group[0]) for group in groups], count):
        order = sorted(groups[index], key=lambda e: -e.get_return())
        kept = [order[i] for i in _spread(len(order), max_group_mates)]
        chosen = {BEST: kept[0], WORST: kept[-1]}.get(why)
        kept.sort(key=_seed)
        chosen = kept[0] if chosen is None else chosen
        for episode in kept:
            yield (why if episode is chosen else GROUP_MATE), episode


def _pick(
    returns: Sequence[float], seeds: Sequence[Any], count: int
) -> list[tuple[str, int]]:
    order = sorted(range(len(returns)), key=lambda i: -returns[i])
    rng = random.Random(repr(list(seeds)))
    picks = [(BEST, order[0])] if count > 1 else []
    if count > 1 and len(order) > 1:
        picks.append((WORST, order[-1]))
    taken = {i for _, i in picks}
    rest = [i for i in order if i not in taken]
    more = min(len(rest), count - len(picks))
    return picks + [(RANDOM, i) for i in rng.sample(rest, more)]


def _spread(total: int, limit: int) -> list[int]:
    """Return up to ``limit`` evenly spaced indices, including both ends."""
    return sorted({round(i) for i in np.linspace(0, total - 1, min(total, limit))})


def that_fit(
    picked: Sequence[tuple[str, Any]], texts: Sequence[str], size: int
) -> list[int]:
    """Return the indices of the records that fit, at least one, group mates last."""
    order = sorted(range(len(picked)), key=lambda i: picked[i][0] == GROUP_MATE)
    kept: list[int] = []
    for place in order:
        if not kept or len(texts[place]) <= size:
            kept.append(place)
            size -= len(texts[place])
    return sorted(kept)


def _seed(episode: Episode) -> Any:
    task = episode_data(episode).task
    return (task.seed, task.rollout) if task else (0, 0)
