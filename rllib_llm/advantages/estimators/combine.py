"""The credit of a policy: a weighted sum of estimators, then transforms in order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, Spec, bind_all
from rllib_llm.data.turn_table import (
    MissingGreedyReturn,
    Trajectory,
    TurnTable,
    example_table,
)
from rllib_llm.errors import ConfigError


class AdvantageEstimators:
    """Turns an iteration's trajectories into one advantage per turn.

    Args:
        estimators: Pieces of kind ``advantage_estimator``; their weighted sum is taken.
        transforms: Pieces of kind ``advantage_transform``, applied to the sum in order.
    """

    def __init__(self, estimators: Sequence[Spec], transforms: Sequence[Spec] = ()):
        self.estimators = bind_all("advantage_estimator", estimators)
        self.transforms = bind_all("advantage_transform", transforms)
        if not self.estimators:
            raise ConfigError(
                "advantage_estimator is empty. Name an estimator, e.g. [group]."
            )

    def advantages(self, table: TurnTable) -> np.ndarray:
        """Return the advantage of each turn. [M]

        Raises:
            ConfigError: If a piece returns another shape, or what is not finite.
        """
        total = self._estimate(table)
        for bound in self.transforms:
            total = _checked(bound, bound.call(table, total), table)
        return total

    def tasks_with_advantages(self, table: TurnTable) -> np.ndarray:
        """Return which tasks have a turn with credit; nothing is remembered of it."""
        found = copy.deepcopy(self)._estimate(table)
        return np.unique(table.task[table.owner[np.abs(found) > 1e-9]])

    def compares_rollouts(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> bool:
        """Whether a rollout without others of its task gets no credit at all."""
        return not len(self.tasks_with_advantages(example_table(agents, rollouts=1)))

    def replays_games(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> bool:
        """Whether a piece lets rollouts meet that did not (``TurnTable.replay``)."""
        table, met = example_table(agents), False

        def replay(players: Sequence[Trajectory]) -> dict[str, float]:
            nonlocal met
            met = True
            return {player.agent_id: player.earned for player in players}

        table.replay = replay
        copy.deepcopy(self)._estimate(table)
        return met

    def needs_greedy(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> bool:
        """Whether a piece compares with the greedy rollout of a task."""
        table = example_table(agents)
        for trajectory in table.trajectories:
            trajectory.greedy_return = None
        try:
            copy.deepcopy(self)._estimate(table)
        except MissingGreedyReturn:
            return True
        return False

    def try_out(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> None:
        """Give credit to a few made-up turns, so that bad settings show up early.

        Args:
            agents: Who plays the environment.

        Raises:
            ConfigError: With what a piece says about its settings.
        """
        table, trial = example_table(agents), copy.deepcopy(self)
        try:
            trial.advantages(table)
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            names = [c.component.name for c in (*self.estimators, *self.transforms)]
            raise ConfigError(
                f"advantage_estimator {', '.join(names)}: {error}"
            ) from error

    def _estimate(self, table: TurnTable) -> np.ndarray:
        """Return the weighted sum, before transforms. [M]"""
        total = np.zeros(len(table.owner))
        for bound in self.estimators:
            total += bound.weight * _checked(bound, bound.call(table), table)
        return total

    def get_state(self) -> list[Any]:
        """Return what the pieces remember between iterations."""
        return [c.get_state() for c in (*self.estimators, *self.transforms)]

    def set_state(self, state: Sequence[Any]) -> None:
        """Bring back :meth:`get_state`'s answer."""
        components = (*self.estimators, *self.transforms)
        for bound, each in zip(components, state, strict=True):
            bound.set_state(each)


def _checked(bound: BoundComponent, found: Any, table: TurnTable) -> np.ndarray:
    found = np.asarray(found, np.float64)
    if found.shape != table.owner.shape or not np.isfinite(found).all():
        raise ConfigError(
            f"{bound.component.kind} {bound.component.name!r} returned "
            f"{list(found.shape)} "
            f"entries for {len(table.owner)} turns, or some that are not finite. It "
            "must return one finite number per turn, in the table's order."
        )
    return found
