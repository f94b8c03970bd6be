"""Wrong labels, made on purpose to measure their effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rllib_llm.algorithms.pref.pairs import PreferencePair
from rllib_llm.data.episode_data import agent_episodes, episode_data
from rllib_llm.seeding import stable_seed


def exchange_labels(
    units: Sequence[Any], share: float, seed: int, keys: Iterable[tuple[Any, ...]]
) -> list[Any]:
    """Return the units, a share of them with exchanged labels.

    Args:
        units: Pairs, or single episodes whose success is the label.
        share: Probability of an exchange.
        seed: The run's.
        keys: Parts of the seed of the draw, of each unit.
    """
    noisy = []
    for unit, key in zip(units, keys, strict=True):
        drawn = np.random.default_rng(stable_seed(seed, "label_noise", *key)).random()
        noisy.append(unit if drawn >= share else _exchanged(unit))
    return noisy


def _exchanged(unit: Any) -> Any:
    """Return a unit with wrong labels: the other side chosen, or other success."""
    if isinstance(unit, PreferencePair):
        sides = unit.agent_episodes
        return PreferencePair(sides["rejected"], sides["chosen"])
    for part in agent_episodes(unit):
        data = episode_data(part)  # its own copy
        data.success = None if data.success is None else not data.success
    return unit
