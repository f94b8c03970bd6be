"""The reward of a run: what the environment paid plus a weighted sum of pieces."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rllib_llm.components.registry import BoundComponent, Spec, bind_all
from rllib_llm.data.turn_table import MissingInfo, Trajectory, TurnTable, example_table
from rllib_llm.errors import ConfigError, RLlibLLMError

ENVIRONMENT = "environment"
_AT_ONCE = 64  # asynchronous rewards that wait at the same time


class Rewards:
    """Gives an iteration's turns their rewards.

    Args:
        parts: Pieces of kind ``reward``; their weighted sum is added to what the
            environment paid, which the piece ``environment`` stands for: it has weight
            1 unless it is named.
        transforms: Pieces of kind ``reward_transform``, in order.
    """

    def __init__(self, parts: Sequence[Spec] = (), transforms: Sequence[Spec] = ()):
        self.parts = bind_all("reward", parts)
        self.transforms = bind_all("reward_transform", transforms)
        if ENVIRONMENT not in [part.component.name for part in self.parts]:
            self.parts = [*bind_all("reward", ENVIRONMENT), *self.parts]

    @property
    def changes_anything(self) -> bool:
        """Whether rewards differ from what the environment paid."""
        return len(self.parts) > 1 or bool(self.transforms) or self.parts[0].weight != 1

    def __call__(
        self, trajectories: Sequence[Trajectory], iteration: int = 0
    ) -> dict[str, np.ndarray]:
        """Write the new rewards into the trajectories.

        Args:
            trajectories: Of whole groups.
            iteration: Training iteration, for weights that change.

        Returns:
            What each part contributed to each turn, by name. [M] each

        Raises:
            ConfigError: If a piece returns other than one finite number, or one per
                turn.
            RLlibLLMError: If a piece fails.
        """
        given = _run(self._all(trajectories))
        found: dict[str, np.ndarray] = {}
        for part, values in zip(self.parts, given, strict=True):
            weighted = part.weight_at(iteration) * np.concatenate([*values, []])
            name = short_name(part)
            found[name] = found[name] + weighted if name in found else weighted
        _write(trajectories, sum(found.values()))
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
        return found

    def try_out(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> None:
        """Reward a few made-up turns, so that bad settings show up early.

        Raises:
            ConfigError: With what a piece says about its settings.
        """
        alone = bind_all("reward", ENVIRONMENT)
        trials = [([part], []) for part in self.parts]
        trials += [(alone, [transform]) for transform in self.transforms]
        for parts, transforms in trials:
            trial = copy.copy(self)
            trial.parts, trial.transforms = parts, transforms
            try:
                trial(example_table(agents).trajectories)
            except MissingInfo:
                continue  # only the environment knows what it says
            except ConfigError:
                raise
            except (RLlibLLMError, TypeError, ValueError) as error:
                name = (transforms or parts)[0].component.name
                cause = error.__cause__ or error
                raise ConfigError(f"reward {name!r}: {cause}") from error

    async def _all(self, trajectories: Sequence[Trajectory]) -> list[list[np.ndarray]]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(part: BoundComponent, trajectory: Trajectory) -> np.ndarray:
            try:
                paid = part.call(trajectory)
                if inspect.isawaitable(paid):
                    async with gate:
                        paid = await paid
            except ConfigError:
                raise
            except Exception as error:  # a user's function may raise anything
                raise RLlibLLMError(
                    f"reward {part.component.name!r} failed on seed "
                    f"{trajectory.task.seed}: {type(error).__name__}: {error}"
                ) from error
            return per_turn(part, paid, len(trajectory))

        async def every(part: BoundComponent) -> list[np.ndarray]:
            return list(await asyncio.gather(*(one(part, t) for t in trajectories)))

        return list(await asyncio.gather(*map(every, self.parts)))


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end, also where this thread's loop runs already, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()


def short_name(bound: BoundComponent) -> str:
    """Return how a piece is called in metrics."""
    return bound.component.name.rpartition(":")[2]


def per_turn(part: BoundComponent, paid: Any, turns: int) -> np.ndarray:
    """Return one reward per turn; a single number is paid in the last one. [H]

    Raises:
        ConfigError: If ``paid`` is neither.
    """
    values = np.asarray(paid, np.float64)
    if values.ndim == 0:
        values = in_last_turn(float(values), turns)
    if values.shape != (turns,) or not np.isfinite(values).all():
        raise ConfigError(
            f"reward {part.component.name!r} returned {paid!r} for {turns} turns. "
            "It must "
            "return a finite number, or one per turn."
        )
    return values


def in_last_turn(value: float, turns: int) -> np.ndarray:
    """Return ``value`` for the last of some turns, 0 for the others. [H]"""
    values = np.zeros(turns)
    values[-1:] = value
    return values


def _write(trajectories: Sequence[Trajectory], rewards: np.ndarray) -> None:
    first = 0
    for trajectory in trajectories:
        last = first + len(trajectory)
        trajectory.rewards = [float(r) for r in rewards[first:last]]
        first = last
