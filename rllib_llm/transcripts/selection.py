"""Which episodes of an iteration a transcript is kept of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rllib_llm.data.episode_data import episode_data

BEST, WORST, RANDOM, SIBLING = "best", "worst", "random", "sibling"


def groups_of(episodes: Sequence[Any]) -> list[list[Any]]:
    """Return the rollouts of each task; episodes without a task stand alone."""
    found: dict[Any, list[Any]] = {}
    for place, episode in enumerate(episodes):
        task = episode_data(episode).task
        found.setdefault(task.group_id if task else (place,), []).append(episode)
    return list(found.values())


def select_episodes(episodes: Sequence[Any], count: int) -> Iterator[tuple[str, Any]]:
    """Yield up to ``count`` pairs of why (best, worst, random) and episode.

    The random ones are the same for the same episodes, so that runs stay repeatable.
    """
    returns = [e.get_return() for e in episodes]
    for why, index in _pick(returns, [_seed(e) for e in episodes], count):
        yield why, episodes[index]


def select_groups(
    groups: Sequence[Sequence[Any]], count: int, max_group_mates: int
) -> Iterator[tuple[str, Any]]:
    """Yield pairs of why and episode of up to ``count`` groups.

    Groups whose rollouts all earned the same carry no credit; they fill up what is
    missing.

    In a group the best, the worst or the first episode says why the group was picked,
    the others are siblings, in the order of their rollouts. Of a larger group episodes
    of all returns are kept.
    """
    unequal = [g for g in groups if len({e.get_return() for e in g}) > 1]
    equal = [g for g in groups if len({e.get_return() for e in g}) == 1]
    groups = unequal + equal[: max(0, count - len(unequal))]
    means = [float(np.mean([e.get_return() for e in group])) for group in groups]
    for why, index in _pick(means, [_seed(group[0]) for group in groups], count):
        order = sorted(groups[index], key=lambda e: -e.get_return())
        kept = [order[i] for i in _spread(len(order), max_group_mates)]
        speaker = {BEST: kept[0], WORST: kept[-1]}.get(why)
        kept.sort(key=_seed)
        speaker = kept[0] if speaker is None else speaker
        for episode in kept:
            yield (why if episode is speaker else SIBLING), episode


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


def _spread(total: int, most: int) -> list[int]:
    """Return up to ``most`` places, evenly spread, both ends among them."""
    return sorted({round(i) for i in np.linspace(0, total - 1, min(total, most))})


def that_fit(
    picked: Sequence[tuple[str, Any]], texts: Sequence[str], size: int
) -> list[int]:
    """Return which of the records are kept, siblings last; the first one always is."""
    order = sorted(range(len(picked)), key=lambda i: picked[i][0] == SIBLING)
    kept: list[int] = []
    for place in order:
        if not kept or len(texts[place]) <= size:
            kept.append(place)
            size -= len(texts[place])
    return sorted(kept)


def _seed(episode: Any) -> Any:
    task = episode_data(episode).task
    return (task.seed, task.rollout) if task else (0, 0)
