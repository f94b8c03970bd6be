"""Rewards composed of other rewards: a gate and a step function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, Spec, bind_all, component
from rllib_llm.data.turn_table import Trajectory
from rllib_llm.rewards.combine import in_last_turn, per_turn

_DEEP_RETRIEVAL = (
    (0.7, 5.0),
    (0.5, 4.0),
    (0.4, 3.0),
    (0.3, 1.0),
    (0.1, 0.5),
    (0.05, 0.1),
)


@component(
    "reward", "gate", paper="Search-R1, arXiv:2503.09516; DeepTravel, 2509.21842"
)
class Gate:
    """Return the reward of the first level whose condition holds.

    Rewards of other levels are not computed.

    Args:
        levels: Mappings of ``when``, a reward (or several, summed), ``above``, a bound
            that its sum over the turns must exceed (default 0), and ``reward``, a
            number or rewards.
        otherwise: Reward if no condition holds: a number or rewards.
    """

    def __init__(
        self, *, levels: Sequence[Mapping[str, Any]], otherwise: float | Any = 0.0
    ):
        if not isinstance(levels, list | tuple) or not levels:
            raise ValueError(
                f"levels={levels!r} must be a list, e.g. "
                "[{when: well_formed, reward: f1}]."
            )
        self.levels = []
        for level in levels:
            keys = set(level) if isinstance(level, Mapping) else set()
            if not {"when", "reward"} <= keys <= {"when", "above", "reward"}:
                raise ValueError(
                    f"the level {level!r} must have when, reward and optionally above. "
                    "Use e.g. {when: well_formed, reward: f1}."
                )
            above = level.get("above", 0.0)
            if not _is_number(above):
                raise ValueError(
                    f"above={above!r} of a level must be a number. Use e.g. 0.5."
                )
            # Bound here and not at the first call, so that wrong names fail with the
            # config.
            when = _rewards("when", level["when"])
            self.levels.append((when, above, _level_reward("reward", level["reward"])))
        self.otherwise = _level_reward("otherwise", otherwise)

    async def __call__(self, trajectory: Trajectory) -> np.ndarray:
        """Return the reward of each turn. [H]"""
        for when, above, reward in self.levels:
            if (await _sum(when, trajectory)).sum() > above:
                return await _evaluate(reward, trajectory)
        return await _evaluate(self.otherwise, trajectory)


@component(
    "reward", "tiers", paper="DeepRetrieval, Jiang et al. 2025, arXiv:2503.00223"
)
class Tiers:
    """Map a reward's sum to a step function, e.g. recall to rewards of up to 5.

    Args:
        of: The reward, or several, summed.
        levels: Pairs of a minimum value and the reward from there on.
        otherwise: Reward below all minimum values.
    """

    def __init__(
        self,
        *,
        of: Spec = "evidence",
        levels: Sequence[Sequence[float]] = _DEEP_RETRIEVAL,
        otherwise: float = -3.5,
    ):
        pairs = isinstance(levels, list | tuple) and all(
            isinstance(p, list | tuple) and len(p) == 2 and all(map(_is_number, p))
            for p in levels
        )
        if not pairs or not levels:
            raise ValueError(
                f"levels={levels!r} must be pairs [[minimum, reward], ...]. Use e.g. "
                "[[0.7, 5.0], [0.5, 4.0]]."
            )
        self.of = _rewards("of", of)
        self.levels = sorted((tuple(pair) for pair in levels), reverse=True)
        self.otherwise = otherwise

    async def __call__(self, trajectory: Trajectory) -> float:
        """Return the reward of the last turn."""
        value = (await _sum(self.of, trajectory)).sum()
        # In descending order: the first match is the highest level.
        reached = (reward for least, reward in self.levels if value >= least)
        return next(reached, self.otherwise)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rewards(name: str, specs: Any) -> list[BoundComponent]:
    bound = [] if _is_number(specs) else bind_all("reward", specs)
    if not bound or not all(_is_number(c.weight) for c in bound):
        raise ValueError(
            f"{name}={specs!r} must name rewards with constant weights. Remove the "
            "weight schedule."
        )
    return bound


def _level_reward(name: str, value: Any) -> float | list[BoundComponent]:
    return float(value) if _is_number(value) else _rewards(name, value)


async def _evaluate(
    reward: float | list[BoundComponent], trajectory: Trajectory
) -> np.ndarray:
    if isinstance(reward, list):
        return await _sum(reward, trajectory)
    return in_last_turn(reward, len(trajectory))


async def _sum(bound: Sequence[BoundComponent], trajectory: Trajectory) -> np.ndarray:
    total = np.zeros(len(trajectory))
    for one in bound:
        reward = one.call(trajectory)
        # Rewards may be coroutines, e.g. those that call a judge.
        reward = await reward if inspect.isawaitable(reward) else reward
        # Weights are constant inside a gate (checked above), so any iteration will do.
        total += one.weight_at(0) * per_turn(one, reward, len(trajectory))
    return total
