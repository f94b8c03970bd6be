"""A policy's advantages: a weighted sum of estimators, then transforms in order."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, Specs, bind_all
from rllib_llm.data.turn_table import (
    MissingGreedyReturn,
    MissingInfo,
    Trajectory,
    TurnTable,
    example_table,
)
from rllib_llm.errors import ConfigError


class AdvantageEstimators:
    """Estimators that give every turn of an iteration's trajectories an advantage.

    Args:
        estimators: Components of kind ``advantage_estimator``, summed with their
            weights.
        transforms: Components of kind ``advantage_transform``, applied to the sum in
            order.
    """

    def __init__(self, estimators: Specs, transforms: Specs = ()):
        self.estimators = bind_all("advantage_estimator", estimators)
        self.transforms = bind_all("advantage_transform", transforms)
        if not self.estimators:
            raise ConfigError(
                "advantage_estimator is empty. Name an estimator, e.g. [group]."
            )

    def advantages(self, table: TurnTable) -> np.ndarray:
        """Return the advantage of each turn. [M]

        Raises:
            ConfigError: If a component returns another shape, or non-finite numbers.
        """
        total = self._estimate(table)  # [M]
        for bound in self.transforms:
            total = _checked(bound, bound.call(table, total), table)
        return total

    def tasks_with_advantages(self, table: TurnTable) -> np.ndarray:
        """Return the tasks with a non-zero advantage, without changing any state."""
        # On a copy: estimators such as `role` and `history` update their averages.
        advantages = copy.deepcopy(self)._estimate(table)
        return np.unique(table.task[table.owner[np.abs(advantages) > 1e-9]])

    def compares_rollouts(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> bool:
        """Return whether a rollout without others of its task gets no advantage."""
        # Measured on an example instead of declared, so that it also holds for
        # components of users.
        return not len(self.tasks_with_advantages(example_table(agents, rollouts=1)))

    def replays_games(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> bool:
        """Return whether a component plays games again (``TurnTable.replay``)."""
        table, has_replayed = example_table(agents), False

        def replay(players: Sequence[Trajectory]) -> dict[str, float]:
            nonlocal has_replayed
            has_replayed = True
            return {player.agent_id: player.episode_return for player in players}

        table.replay = replay
        copy.deepcopy(self)._estimate(table)
        return has_replayed

    def needs_greedy(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> bool:
        """Return whether a component compares with the greedy rollout of a task."""
        table = example_table(agents)
        for trajectory in table.trajectories:
            trajectory.greedy_return = None
        try:
            copy.deepcopy(self)._estimate(table)
        except MissingGreedyReturn:
            return True
        return False

    def try_out(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> None:
        """Compute advantages of an example table, to detect bad settings early.

        Args:
            agents: Agents of the environment.

        Raises:
            ConfigError: With the message of the component that failed.
        """
        table, trial = example_table(agents), copy.deepcopy(self)
        try:
            total = trial._estimate(table)
            for bound in trial.transforms:
                # The example's turns lack the infos of the environment.
                with contextlib.suppress(MissingInfo):
                    total = _checked(bound, bound.call(table, total), table)
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
            # All estimators see the same table; only the weighted sum is transformed.
            total += bound.weight * _checked(bound, bound.call(table), table)
        return total

    def get_state(self) -> list[Any]:
        """Return the components' state between iterations."""
        return [c.get_state() for c in (*self.estimators, *self.transforms)]

    def set_state(self, state: Sequence[Any]) -> None:
        """Restore the state returned by :meth:`get_state`."""
        components = (*self.estimators, *self.transforms)
        for bound, each in zip(components, state, strict=True):
            bound.set_state(each)


def _checked(bound: BoundComponent, result: object, table: TurnTable) -> np.ndarray:
    result = np.asarray(result, np.float64)
    if result.shape != table.owner.shape or not np.isfinite(result).all():
        raise ConfigError(
            f"{bound.component.kind} {bound.component.name!r} returned "
            f"{list(result.shape)} entries for {len(table.owner)} turns, or some that "
            "are not finite. It must return one finite number per turn, in the table's "
            "order."
        )
    return result
