"""Combined reward of a run: the environment's plus weighted reward functions."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, Specs, bind_all
from rllib_llm.data.turn_table import MissingInfo, Trajectory, TurnTable, example_table
from rllib_llm.errors import ConfigError, RLlibLLMError

ENVIRONMENT = "environment"
_MAX_CONCURRENT = 64  # asynchronous rewards that run at the same time


class Rewards:
    """Computes the rewards of an iteration's turns.

    Args:
        parts: Components of kind ``reward``. Their weighted sum is added to the
            environment's reward, which is the component ``environment`` and has weight
            1 unless it is listed.
        transforms: Components of kind ``reward_transform``, applied in order.
    """

    def __init__(self, parts: Specs = (), transforms: Specs = ()):
        self.parts = bind_all("reward", parts)
        self.transforms = bind_all("reward_transform", transforms)
        if ENVIRONMENT not in [part.component.name for part in self.parts]:
            self.parts = [*bind_all("reward", ENVIRONMENT), *self.parts]

    @property
    def changes_anything(self) -> bool:
        """True if rewards may differ from those of the environment."""
        return len(self.parts) > 1 or bool(self.transforms) or self.parts[0].weight != 1

    def __call__(
        self, trajectories: Sequence[Trajectory], iteration: int = 0
    ) -> dict[str, np.ndarray]:
        """Write the new rewards into the trajectories.

        Args:
            trajectories: Trajectories of whole groups.
            iteration: Training iteration, for scheduled weights.

        Returns:
            Weighted reward of each component and turn, by component. [M] each

        Raises:
            ConfigError: If a component does not return a finite number, or one per
                turn.
            RLlibLLMError: If a component raises an error.
        """
        computed = _run(self._all(trajectories))
        by_name: dict[str, np.ndarray] = {}
        for part, values in zip(self.parts, computed, strict=True):
            # [] keeps concatenate valid without trajectories.
            weighted = part.weight_at(iteration) * np.concatenate([*values, []])
            name = short_name(part)
            # A component may be listed twice with other settings.
            by_name[name] = by_name[name] + weighted if name in by_name else weighted
        # Before the transforms, which read the sum of all components.
        _write(trajectories, np.asarray(sum(by_name.values())))
        for bound in self.transforms:
            table = TurnTable(trajectories)
            new = np.asarray(bound.call(table), np.float64)
            if new.shape != table.rewards.shape or not np.isfinite(new).all():
                raise ConfigError(
                    f"reward_transform {bound.component.name!r} returned "
                    f"{list(new.shape)} numbers for {len(table.rewards)} turns, or "
                    "some that are not finite. It must return one finite number per "
                    "turn."
                )
            _write(trajectories, new)
        return by_name

    def try_out(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> None:
        """Compute rewards of example turns, to detect invalid settings early.

        Raises:
            ConfigError: If a component rejects its settings.
        """
        alone = bind_all("reward", ENVIRONMENT)
        # One component at a time, so that the error names the one that failed.
        trials: list[tuple[list[BoundComponent], list[BoundComponent]]]
        trials = [([part], []) for part in self.parts]
        trials += [(alone, [transform]) for transform in self.transforms]
        for parts, transforms in trials:
            trial = copy.copy(self)
            trial.parts, trial.transforms = parts, transforms
            try:
                trial(example_table(agents).trajectories)
            except MissingInfo:
                continue  # the example turns lack the environment's info
            except ConfigError:
                raise
            except (RLlibLLMError, TypeError, ValueError) as error:
                name = (transforms or parts)[0].component.name
                cause = error.__cause__ or error
                raise ConfigError(f"reward {name!r}: {cause}") from error

    async def _all(self, trajectories: Sequence[Trajectory]) -> list[list[np.ndarray]]:
        gate = asyncio.Semaphore(_MAX_CONCURRENT)

        async def one(part: BoundComponent, trajectory: Trajectory) -> np.ndarray:
            try:
                reward = part.call(trajectory)
                # A coroutine starts when it is awaited, so the semaphore limits how
                # many run.
                if inspect.isawaitable(reward):
                    async with gate:
                        reward = await reward
            except ConfigError:
                raise
            except Exception as error:  # a user's function may raise anything
                raise RLlibLLMError(
                    f"reward {part.component.name!r} failed on seed "
                    f"{trajectory.task.seed}: {type(error).__name__}: {error}"
                ) from error
            return per_turn(part, reward, len(trajectory))

        async def every(part: BoundComponent) -> list[np.ndarray]:
            if hasattr(part.call, "of_all"):
                rewards = part.call.of_all(trajectories)
                pairs = zip(rewards, trajectories, strict=True)
                return [per_turn(part, reward, len(t)) for reward, t in pairs]
            return list(await asyncio.gather(*(one(part, t) for t in trajectories)))

        return list(await asyncio.gather(*map(every, self.parts)))


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end and return its result."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # This thread already runs a loop, as in notebooks: use another thread.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()


def short_name(bound: BoundComponent) -> str:
    """Return the name of a component in metrics."""
    return bound.component.name.rpartition(":")[2]


def per_turn(part: BoundComponent, reward: object, turns: int) -> np.ndarray:
    """Return one reward per turn; a single number belongs to the last turn. [H]

    Raises:
        ConfigError: If ``reward`` is neither a finite number nor one per turn.
    """
    values = np.asarray(reward, np.float64)
    if values.ndim == 0:
        values = in_last_turn(float(values), turns)
    if values.shape != (turns,) or not np.isfinite(values).all():
        raise ConfigError(
            f"reward {part.component.name!r} returned {reward!r} for {turns} turns. "
            "It must return a finite number, or one per turn. Correct the function."
        )
    return values


def in_last_turn(value: float, turns: int) -> np.ndarray:
    """Return ``value`` for the last turn and 0 for all others. [H]"""
    values = np.zeros(turns)
    values[-1:] = value  # a slice: there may be no turns
    return values


def _write(trajectories: Sequence[Trajectory], rewards: np.ndarray) -> None:
    first = 0
    for trajectory in trajectories:
        last = first + len(trajectory)
        trajectory.rewards = [float(r) for r in rewards[first:last]]
        first = last
