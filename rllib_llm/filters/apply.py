"""Application of filters, each to the trajectories that the earlier ones keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rllib_llm.components.registry import BoundComponent, Specs, bind_all
from rllib_llm.data.turn_table import MissingInfo, TurnTable, example_table
from rllib_llm.errors import ConfigError
from rllib_llm.rewards.combine import short_name


@dataclasses.dataclass(slots=True)
class FilterResult:
    """Result of the filters for one trajectory.

    Attributes:
        is_dropped: Whether it is removed completely.
        is_masked: Whether it counts in its group's statistics but not in the loss.
        masked_turns: Indices of turns that do not count in the loss.
    """

    is_dropped: bool = False
    is_masked: bool = False
    masked_turns: frozenset[int] = frozenset()


class Filters:
    """Applies filters to trajectories.

    Args:
        filters: Components of kind ``filter``, applied in order.
        turns_may_be_masked: Whether filters may mask single turns.
    """

    def __init__(self, filters: Specs = (), *, turns_may_be_masked: bool = True):
        self.bound = bind_all("filter", filters)
        self.turns_may_be_masked = turns_may_be_masked

    def __call__(self, table: TurnTable) -> tuple[list[FilterResult], dict[str, float]]:
        """Apply the filters to the trajectories of whole groups.

        Returns:
            The result of each trajectory, and by filter the share of its input
            (trajectories or turns) that it removed.

        Raises:
            ConfigError: If a filter does not return one boolean per trajectory or turn.
        """
        trajectories = table.trajectories
        results = [FilterResult() for _ in trajectories]
        shares: dict[str, float] = {}
        for bound in self.bound:
            # Masked trajectories stay: later filters need complete group statistics.
            left = [i for i, r in enumerate(results) if not r.is_dropped]
            if len(left) < len(table):
                table = TurnTable([trajectories[i] for i in left])
            keep = self._keep(bound, table)
            shares[short_name(bound)] = float(1 - keep.mean()) if len(keep) else 0.0
            if bound.component.effect == "turns":
                _mask_turns([results[i] for i in left], table.split(keep))
                continue
            for i, is_kept in zip(left, keep.tolist(), strict=True):
                if bound.effect == "drop":
                    results[i].is_dropped |= not is_kept
                else:
                    results[i].is_masked |= not is_kept
        return results, shares

    def metrics(self) -> dict[tuple[str, str], float]:
        """Return what filters with ``metrics`` measured in their last call.

        Returns:
            Values by the filter's name and the metric's.
        """
        return {
            (short_name(bound), key): value
            for bound in self.bound
            for key, value in getattr(bound.call, "metrics", {}).items()
        }

    def try_out(self, agents: Sequence[str] = ("agent_0", "agent_1")) -> None:
        """Apply the filters to example turns, to detect invalid settings early.

        Raises:
            ConfigError: If a filter rejects its settings.
        """
        try:
            self(example_table(agents))
        except MissingInfo:
            return  # the example turns lack the environment's info
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            names = ", ".join(c.component.name for c in self.bound)
            raise ConfigError(f"filters {names}: {error}") from error

    def _keep(self, bound: BoundComponent, table: TurnTable) -> np.ndarray:
        keep = np.asarray(bound.call(table))
        of_turns = bound.component.effect == "turns"
        count = len(table.owner) if of_turns else len(table)
        if keep.shape != (count,) or keep.dtype != np.bool_:
            raise ConfigError(
                f"filter {bound.component.name!r} returned {keep.dtype} "
                f"{list(keep.shape)} for {len(table)} trajectories of "
                f"{len(table.owner)} turns. It must return one boolean per trajectory "
                "(per turn if it is registered with effect='turns')."
            )
        if of_turns and not self.turns_may_be_masked:
            raise ConfigError(
                f"filter {bound.component.name!r} masks single turns, whose rewards "
                "the critic's returns need. Use it with GRPO."
            )
        return keep


def _mask_turns(results: Sequence[FilterResult], keep: Sequence[np.ndarray]) -> None:
    for result, kept in zip(results, keep, strict=True):
        result.masked_turns |= frozenset(np.flatnonzero(~kept).tolist())
