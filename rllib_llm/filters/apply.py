"""Filters, one after the other, over the trajectories that those before left."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rllib_llm.components.registry import BoundComponent, Spec, bind_all
from rllib_llm.data.turn_table import MissingInfo, Trajectory, TurnTable, example_table
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import short_name


@dataclasses.dataclass(slots=True)
class FilterResult:
    """What becomes of a trajectory.

    Attributes:
        is_dropped: As if it had not been played.
        is_masked: It counts in the statistics of its group and is not learnt from.
        masked_turns: Turns that are not learnt from.
    """

    is_dropped: bool = False
    is_masked: bool = False
    masked_turns: frozenset[int] = frozenset()


class Filters:
    """Decides what is learnt from.

    Args:
        filters: Pieces of kind ``filter``, in order.
        turns_may_be_masked: Whether a filter may leave out single turns.
    """

    def __init__(
        self, filters: Sequence[Spec] = (), *, turns_may_be_masked: bool = True
    ):
        self.bound = bind_all("filter", filters)
        self.turns_may_be_masked = turns_may_be_masked

    def __call__(
        self, trajectories: Sequence[Trajectory]
    ) -> tuple[list[FilterResult], dict[str, float]]:
        """Judge trajectories of whole groups.

        Returns:
            A verdict for each, and what share of those it saw each filter took (of
            trajectories, or of turns), by name.

        Raises:
            ConfigError: If a filter returns something else than truth values.
        """
        verdicts = [FilterResult() for _ in trajectories]
        shares: dict[str, float] = {}
        for bound in self.bound:
            left = [i for i, v in enumerate(verdicts) if not v.is_dropped]
            table = TurnTable([trajectories[i] for i in left])
            keep = self._keep(bound, table)
            shares[short_name(bound)] = float(1 - keep.mean()) if len(keep) else 0.0
            if bound.component.effect == "turns":
                _mask_turns([verdicts[i] for i in left], table.split(keep))
                continue
            for i, is_kept in zip(left, keep.tolist(), strict=True):
                if bound.effect == "drop":
                    verdicts[i].is_dropped |= not is_kept
                else:
                    verdicts[i].is_masked |= not is_kept
        return verdicts, shares

    def try_out(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> None:
        """Judge a few made-up turns, so that bad settings show up early.

        Raises:
            ConfigError: With what a filter says about its settings.
        """
        try:
            self(example_table(agents).trajectories)
        except MissingInfo:
            return  # only the environment knows what it says
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            names = ", ".join(c.component.name for c in self.bound)
            raise ConfigError(f"filters {names}: {error}") from error

    def _keep(self, bound: BoundComponent, table: TurnTable) -> np.ndarray:
        keep = np.asarray(bound.call(table))
        of_turns = bound.component.effect == "turns"
        wanted = len(table.owner) if of_turns else len(table)
        if keep.shape != (wanted,) or keep.dtype != np.bool_:
            raise ConfigError(
                f"filter {bound.component.name!r} returned {keep.dtype} "
                f"{list(keep.shape)} for {len(table)} trajectories of "
                f"{len(table.owner)} turns. It must return one truth value per "
                "trajectory (per turn if it is registered with effect='turns')."
            )
        if of_turns and not self.turns_may_be_masked:
            raise ConfigError(
                f"filter {bound.component.name!r} leaves out single turns, which would "
                "take their rewards from the critic's chain. Use it with GRPO."
            )
        return keep


def _mask_turns(verdicts: Sequence[FilterResult], keep: Sequence[np.ndarray]) -> None:
    for verdict, kept in zip(verdicts, keep, strict=True):
        verdict.masked_turns |= frozenset(np.flatnonzero(~kept).tolist())
